// Right operands of products that are given transposed: the kernels of scans copy them to the scratch memory of a block, unless
// they lie as if they were not.
#pragma once

#include <cstdint>

#include "engine/core/host_device.h"

namespace nestgrad::cuda {

// Rows of the copy are this far apart, in elements: not all in the same banks of shared memory, and at multiples of 16 bytes.
NESTGRAD_HOST_DEVICE constexpr std::int64_t padded_row(std::int64_t n) { return (n + 3) / 4 * 4 + 4; }
// Such an operand has its rows side by side (b_row 1) and its columns apart; of one column there is nothing to turn.
NESTGRAD_HOST_DEVICE constexpr bool transposes_b(std::int64_t n, std::int64_t b_row, std::int64_t b_column) {
  return n > 1 && b_row < b_column;
}

}  // namespace nestgrad::cuda
