// Sums over rows, column by column: of kernels (ops/kernels/reduce.cpp) and of compiled bodies of loops
// (engine/plan/body_source.h), with the same bits.
//
//   column_sum<float, 16, 64>(x, y);  // y[j] = x[0, j] + x[1, j] + .. + x[15, j], for 64 columns
#pragma once

#include <type_traits>

#include "ops/kernels/some.h"
#include "ops/numerics/lane_sum.h"

namespace nestgrad::inline NESTGRAD_ISA {

// As many columns from `begin` on as there is room for in registers. row(s): where row s begins.
template <int Columns, class T, class Row>
NESTGRAD_MEMBER_FN void sum_columns(std::int64_t count, Row row, std::int64_t begin, T* y) {
  using Acc = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
  Acc acc[Columns] = {};
  for (std::int64_t s = 0; s < count; ++s) {
    const T* from = row(s) + begin;
    __asm__("" : "+r"(from));  // or compilers make two rows a loop of single elements
    for (int i = 0; i < Columns; ++i) acc[i] += static_cast<Acc>(from[i]);
  }
  for (int i = 0; i < Columns; ++i) y[i] = static_cast<T>(acc[i]);
}

// Of f32, as many rows as a lane adds up (lane_sum.h) are added up in f32, and these sums in double.
// load(s, i): register i of what row s has.
template <int Packs, class Load>
NESTGRAD_MEMBER_FN void sum_columns_f32(std::int64_t count, Load load, float* y) {
  typedef float Half __attribute__((vector_size(kRegisterBytes / 2)));
  constexpr int size = Pack<float>::size;
  Register<double>::Raw total[2 * Packs] = {};
  for (std::int64_t first = 0; first < count; first += kAddedInF32) {
    const std::int64_t end = count < first + kAddedInF32 ? count : first + kAddedInF32;
    Register<float>::Raw part[Packs] = {};
    for (std::int64_t s = first; s < end; ++s)
#pragma GCC unroll 8
      for (int i = 0; i < Packs; ++i) part[i] += load(s, i).raw;
#pragma GCC unroll 8
    for (int i = 0; i < Packs; ++i) add_halves(part[i], total[2 * i], total[2 * i + 1]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 2 * Packs; ++i) {
    const Half half = __builtin_convertvector(total[i], Half);
    __builtin_memcpy(y + i * size / 2, &half, sizeof half);
  }
}

// y[j] = the sum of element j of `count` rows, for j < inner. row(s): where row s begins.
template <class T, class Row>
NESTGRAD_MEMBER_FN void sum_rows(std::int64_t count, std::int64_t inner, Row row, T* y) {
  std::int64_t i = 0;
  if constexpr (std::is_same_v<T, float>) {
    constexpr int size = Pack<float>::size;
    if (inner < size) {
      const Some<float> some(inner);
      float wide[size];
      sum_columns_f32<1>(
          count, [&](std::int64_t s, int) __attribute__((always_inline)) { return some.load_once(row(s)); },
          wide);
      return some.store(Pack<float>::load(wide), y);
    }
    const auto load = [&](std::int64_t j) __attribute__((always_inline)) {
      return [&row, j ](std::int64_t s, int k) __attribute__((always_inline)) {
        return Pack<float>::load(row(s) + j + k * size);
      };
    };
    for (; i + 4 * size <= inner; i += 4 * size) sum_columns_f32<4>(count, load(i), y + i);
    for (; i < inner; i += size) {  // the last register ends with the columns
      const std::int64_t begin = i + size <= inner ? i : inner - size;
      sum_columns_f32<1>(count, load(begin), y + begin);
    }
  } else {
    constexpr int kColumns = kRegisterBytes;  // eight registers of doubles
    for (; i + kColumns <= inner; i += kColumns) sum_columns<kColumns>(count, row, i, y + i);
    for (; i + 8 <= inner; i += 8) sum_columns<8>(count, row, i, y + i);
    for (; i < inner; ++i) sum_columns<1>(count, row, i, y + i);
  }
}

// y[j] = x[0, j] + x[1, j] + .., of dense rows.
template <class T, std::int64_t Rows, std::int64_t Columns>
__attribute__((noinline)) void column_sum(const T* x, T* y) {
  sum_rows<T>(
      Rows, Columns, [x](std::int64_t s) __attribute__((always_inline)) { return x + s * Columns; }, y);
}

}  // namespace nestgrad::inline NESTGRAD_ISA
