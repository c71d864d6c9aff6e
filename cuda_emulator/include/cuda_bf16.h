// Stand-in for the toolkit's header: bfloat16, the upper half of a float.
#pragma once

#include <bit>
#include <cstdint>

struct __nv_bfloat16 {
  std::uint16_t bits;
};
using nv_bfloat16 = __nv_bfloat16;

// To the nearest, to even if two are as near.
inline __nv_bfloat16 __float2bfloat16(float x) {
  if (x != x) return {0x7fff};
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  return {static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __float2bfloat16(x); }
inline float __bfloat162float(__nv_bfloat16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }
