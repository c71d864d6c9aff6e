// What memory holds that nothing was written to, and how allocations are padded.
#pragma once

#include <algorithm>
#include <cstddef>

namespace nestgrad::emulator {

constexpr unsigned char kPoison = 0xff;  // as a floating-point number: not a number
constexpr std::size_t kPage = 4096, kAlignment = 16;
constexpr std::size_t kMargin = 64;  // bytes before an allocation that must stay poisoned

constexpr std::size_t rounded_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

inline bool is_poison(const unsigned char* from, const unsigned char* to) {
  return std::all_of(from, to, [](unsigned char byte) { return byte == kPoison; });
}

}  // namespace nestgrad::emulator
