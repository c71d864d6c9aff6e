// How the kernels of scans multiply, as far as shapes decide it: for the interpreter and for kernels that are compiled, so that both
// have the same bits.
#pragma once

#include <cstdint>

#include "cuda/scan_arguments.h"
#include "engine/core/host_device.h"

namespace nestgrad::cuda {

// A right operand that is given transposed is copied to the scratch memory of a block, unless it lies as if it were not. Rows of the
// copy are this far apart, in elements: not all in the same banks of shared memory, and at multiples of 16 bytes.
NESTGRAD_HOST_DEVICE constexpr std::int64_t padded_row(std::int64_t n) { return (n + 3) / 4 * 4 + 4; }
// Such an operand has its rows side by side (b_row 1) and its columns apart; of one column there is nothing to turn.
NESTGRAD_HOST_DEVICE constexpr bool transposes_b(std::int64_t n, std::int64_t b_row, std::int64_t b_column) {
  return n > 1 && b_row < b_column;
}

// Groups of four columns, of which a thread takes one.
NESTGRAD_HOST_DEVICE constexpr std::int64_t column_groups(std::int64_t n) { return (n + 3) / 4; }

// Into how many parts the sums over k may be cut, each of 16 terms and more.
NESTGRAD_HOST_DEVICE constexpr std::int64_t most_parts(std::int64_t k) {
  return k >= 64 && k % 64 == 0 ? 4 : k >= 32 && k % 32 == 0 ? 2 : 1;
}

// Rows of C that a thread takes at once: as many as leave half the threads something to do. A warp takes four turns to read what it
// multiplies with one row or with eight. On an H200, [64, 64] by [64, 64] by fours, which gives all threads work, made scans slower by 8 %.
NESTGRAD_HOST_DEVICE constexpr std::int64_t rows_at_once(std::int64_t m, std::int64_t n, std::int64_t k) {
  for (std::int64_t rows = 8; rows > 1; rows /= 2)
    if (m % rows == 0 && m / rows * column_groups(n) * (rows == 8 ? 1 : most_parts(k)) >= kScanThreads / 2)
      return rows;
  return 1;
}

// Into how many parts the sums over k are cut, where that leaves threads without work: each part is added up by itself, in order of k,
// and then the parts, in theirs. Of [16, 64] by [64, 64]: four, by 64 threads each.
NESTGRAD_HOST_DEVICE constexpr std::int64_t parts_of_sum(std::int64_t m, std::int64_t n, std::int64_t k) {
  const std::int64_t rows = rows_at_once(m, n, k), tiles = m / rows * column_groups(n);
  std::int64_t parts = 1;
  while (rows < 8 && 2 * parts * tiles <= kScanThreads && 2 * parts <= most_parts(k)) parts *= 2;
  return parts;
}
// Elements of scratch memory for it, if the parts are taken side by side.
NESTGRAD_HOST_DEVICE constexpr std::int64_t parts_scratch(std::int64_t m, std::int64_t n, std::int64_t k) {
  return (parts_of_sum(m, n, k) - 1) * m * column_groups(n) * 4;
}

// ---- on tensor cores, with operands in TF32 or bf16 (cuda/tensor_core.cuh) ----

// They take 16 rows of A and 8 columns of B, and sum over 16.
NESTGRAD_HOST_DEVICE constexpr bool fits_tensor_cores(std::int64_t m, std::int64_t n, std::int64_t k) {
  return m > 0 && n > 0 && k > 0 && m % 16 == 0 && n % 8 == 0 && k % 16 == 0;
}
// Rows and columns of C that a warp takes.
NESTGRAD_HOST_DEVICE constexpr int tensor_core_rows(std::int64_t m, bool a_turned) {
  return a_turned && m % 32 == 0 ? 32 : 16;
}
NESTGRAD_HOST_DEVICE constexpr int tensor_core_columns(std::int64_t n) {
  return n % 32 == 0 ? 32 : n % 16 == 0 ? 16 : 8;
}
// As parts_of_sum(); scratch memory for m n elements of each but the first.
NESTGRAD_HOST_DEVICE constexpr std::int64_t tensor_core_parts(std::int64_t m, std::int64_t n, std::int64_t k,
                                                              bool a_turned) {
  const std::int64_t units = m / tensor_core_rows(m, a_turned) * (n / tensor_core_columns(n));
  std::int64_t parts = 1;
  while (2 * parts * units * 32 <= kScanThreads && k % (2 * parts * 16) == 0) parts *= 2;
  return parts;
}

}  // namespace nestgrad::cuda
