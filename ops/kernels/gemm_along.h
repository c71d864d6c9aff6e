// A vector against rows that lie along k.
#pragma once

#include "ops/kernels/gemm_tile.h"
#include "ops/numerics/transpose.h"

namespace nestgrad::inline NESTGRAD_ISA {

// A sum goes by kLanes lanes, in as many registers as that takes.
// Even and odd pieces of 64 bytes have a sum each; what is left of k, filled up with zeros, counts as even.
// Then the odd sum is added to the even one, and lane i + half to lane i until one is left.
constexpr int kLaneRegisters = 64 / kRegisterBytes;

// So many registers of a sum are done in one go over k, for four rows: as many as there is room for.
constexpr int kLaneParts = kLaneRegisters > 1 && kSums >= 24 ? 2 : 1;

// Even plus odd of `Rows` rows, for registers first .. first + kLaneParts of their lanes; Ahead: asks for
// the same of the rows that follow.
template <class T, int Rows, bool Ahead>
NESTGRAD_MEMBER_FN void sum_along(const T* rows, const T* x, Size k, int first,
                                  Pack<T> (&sum)[Rows][kLaneRegisters]) {
  constexpr int size = Pack<T>::size, parts = kLaneParts;
  constexpr Size lanes = kLanes<T>;
  Pack<T> even[Rows][parts], odd[Rows][parts];
#pragma GCC unroll 4
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < parts; ++j) even[i][j] = odd[i][j] = Pack<T>(0);
  const auto add = [&](Pack<T>(&to)[Rows][parts], Size p, auto load) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int j = 0; j < parts; ++j) {
      const Size at = p + (first + j) * size;
      const Pack<T> y = load(x, at);
      if constexpr (Ahead) {
#pragma GCC unroll 4
        for (int i = 0; i < Rows; ++i) __builtin_prefetch(rows + (i + Rows) * k + at);
      }
#pragma GCC unroll 4
      for (int i = 0; i < Rows; ++i) to[i][j] = fma(y, load(rows + i * k, at), to[i][j]);
    }
  };
  const auto whole = [](const T* from, Size at) __attribute__((always_inline)) {
    return Pack<T>::load(from + at);
  };
  Size p = 0;
  for (; p + 2 * lanes <= k; p += 2 * lanes) add(even, p, whole), add(odd, p + lanes, whole);
  if (p + lanes <= k) add(even, p, whole), p += lanes;
  if (p < k)
    add(
        even, p, [k](const T* from, Size at) __attribute__((always_inline)) {
          const Size left = k - at;
          return left >= size ? Pack<T>::load(from + at)
                 : left > 0   ? Some<T>(left).load_once(from + at)
                              : Pack<T>(0);
        });
#pragma GCC unroll 4
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < parts; ++j) sum[i][first + j] = even[i][j] + odd[i][j];
}

// The sums of `Rows` rows, as many lanes as a register has.
template <class T, int Rows>
NESTGRAD_MEMBER_FN void sum_along(const T* rows, const T* x, Size k, Pack<T> (&sum)[Rows]) {
  Pack<T> part[Rows][kLaneRegisters];
  sum_along<T, Rows, false>(rows, x, k, 0, part);
  // The second time over long rows is the time to ask for the next ones.
  const bool ahead = k * Size{sizeof(T)} >= 1024;
#pragma GCC unroll 4
  for (int first = kLaneParts; first < kLaneRegisters; first += kLaneParts) {
    if (ahead) sum_along<T, Rows, true>(rows, x, k, first, part);
    else sum_along<T, Rows, false>(rows, x, k, first, part);
  }
#pragma GCC unroll 4
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
    for (int half = kLaneRegisters / 2; half > 0; half /= 2)
#pragma GCC unroll 4
      for (int j = 0; j < half; ++j) part[i][j] = part[i][j] + part[i][j + half];
    sum[i] = part[i][0];
  }
}

// x and y seen as pieces of 2 Unit lanes: the lower half of each plus its upper half; those of x, then those
// of y.
template <int Unit, class T>
NESTGRAD_MEMBER_FN Pack<T> halved(Pack<T> x, Pack<T> y) {
  using namespace transpose_detail;
  constexpr int units = Pack<T>::size / Unit;
  return Pack<T>(shuffled<Unit, Alternate<units, false>>(x.raw, y.raw)) +
         Pack<T>(shuffled<Unit, Alternate<units, true>>(x.raw, y.raw));
}
template <int Unit, class T>
NESTGRAD_MEMBER_FN Pack<T> all_halved(Pack<T> x) {
  x = halved<Unit>(x, x);
  if constexpr (Unit > 1) return all_halved<Unit / 2>(x);
  else return x;
}

// Lane i of the result: the lanes of sum[i], added up; of `Count` registers in its first lanes.
template <int Unit, int Count, class T>
NESTGRAD_MEMBER_FN Pack<T> sums_of_lanes(const Pack<T>* sum) {
  if constexpr (Count == 1) {
    if constexpr (Unit == 0) return sum[0];
    else return all_halved<Unit>(sum[0]);
  } else {
    Pack<T> next[Count / 2];
#pragma GCC unroll 8
    for (int i = 0; i < Count / 2; ++i) next[i] = halved<Unit>(sum[2 * i], sum[2 * i + 1]);
    return sums_of_lanes<Unit / 2, Count / 2>(next);
  }
}

// So many rows at once, beside four: a register of results, where there are registers for their sums.
template <class T>
constexpr int kRowsAlong = kSums >= 24 ? Pack<T>::size : 4;

// y[i] = plus[i] + rows[i] x for 0 <= i < Rows, a multiple of four, or without plus.
template <class T, int Rows>
NESTGRAD_MEMBER_FN void multiply_along(const T* rows, const T* x, Size k, const T* plus, T* y) {
  constexpr int size = Pack<T>::size;
  Pack<T> sum[Rows];
#pragma GCC unroll 4
  for (int i = 0; i < Rows; i += 4) {
    Pack<T> four[4];
    sum_along<T, 4>(rows + i * k, x, k, four);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sum[i + j] = four[j];
  }
  if constexpr (Rows == size) {
    const Pack<T> all = sums_of_lanes<size / 2, Rows>(sum);
    (plus ? Pack<T>::load(plus) + all : all).store(y);
  } else {
    static_assert(Rows == 4);
    T all[2 * size];
    if constexpr (size == 2) {
      halved<1>(sum[0], sum[1]).store(all), halved<1>(sum[2], sum[3]).store(all + 2);
    } else {
      sums_of_lanes<size / 2, 4>(sum).store(all);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) y[i] = plus ? plus[i] + all[i] : all[i];
  }
}

// Elements begin .. end of the product of a matrix, whose rows have k elements, and a vector.
template <class T>
void run_along(const T* matrix, const T* vector, Size k, const T* d, T* c, Size begin, Size end) {
  Size i = begin;
  constexpr int rows = kRowsAlong<T>;
  if constexpr (rows > 4)
    for (; i + rows <= end; i += rows)
      multiply_along<T, rows>(matrix + i * k, vector, k, d ? d + i : nullptr, c + i);
  for (; i + 4 <= end; i += 4) multiply_along<T, 4>(matrix + i * k, vector, k, d ? d + i : nullptr, c + i);
  for (; i < end; ++i) {
    Pack<T> sum[1];
    sum_along<T, 1>(matrix + i * k, vector, k, sum);
    T all[Pack<T>::size];
    all_halved<Pack<T>::size / 2>(sum[0]).store(all);
    c[i] = d ? d[i] + all[0] : all[0];
  }
}

}  // namespace nestgrad::inline NESTGRAD_ISA
