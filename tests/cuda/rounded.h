// Operands as products of less precision round them.
#pragma once

#include <bit>

#include "engine/core/array.h"

namespace nestgrad::testing {

// Floats with `bits` after the point, to nearest; from the middle between two to the even one, or away from zero.
enum class Middle { to_even, away };
inline Array rounded(const Array& a, int bits, Middle middle = Middle::to_even) {
  Array out = a.clone();
  for (float& x : out.as<float>()) {
    const int drop = 23 - bits;
    std::uint32_t u = std::bit_cast<std::uint32_t>(x);
    u += (1u << (drop - 1)) - 1 + (middle == Middle::away ? 1 : u >> drop & 1);
    x = std::bit_cast<float>(u >> drop << drop);
  }
  return out;
}

}  // namespace nestgrad::testing
