// How many parts of a size hold a number of things: ceil_of(9, 4) is 3.
#pragma once

#include <cstdint>

namespace nestgrad::cuda {

constexpr std::int64_t ceil_of(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

}  // namespace nestgrad::cuda
