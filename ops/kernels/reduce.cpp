// Sums and maxima.
#include <type_traits>

#include "ops/kernels/column_sum.h"
#include "ops/kernels/some.h"
#include "ops/kernels/table.h"
#include "ops/numerics/rows.h"

namespace nestgrad::inline NESTGRAD_ISA {

namespace {

// ---- sums ----

// Of f64 and i32, in parts, so that the loop fills registers.
template <class T>
T sum(const T* x, const std::int64_t* steps, std::int64_t count, std::int64_t inner) {
  using Acc = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
  constexpr int kParts = 8;
  Acc part[kParts] = {};
  for (std::int64_t s = 0; s < count; ++s) {
    const T* run = x + steps[s];
    std::int64_t i = 0;
    for (; i + kParts <= inner; i += kParts)
      for (int k = 0; k < kParts; ++k) part[k] += static_cast<Acc>(run[i + k]);
    for (; i < inner; ++i) part[0] += static_cast<Acc>(run[i]);
  }
  return static_cast<T>(((part[0] + part[4]) + (part[1] + part[5])) +
                        ((part[2] + part[6]) + (part[3] + part[7])));
}

template <>
float sum(const float* x, const std::int64_t* steps, std::int64_t count, std::int64_t inner) {
  constexpr int size = Pack<float>::size;
  LaneSum total;
  for (std::int64_t s = 0; s < count; ++s) {
    const float* run = x + steps[s];
    std::int64_t left = inner;
    for (; left >= kLanes<float>; left -= kLanes<float>, run += kLanes<float>) {
#pragma GCC unroll 4
      for (int k = 0; k < LaneSum::kPacks; ++k) total.add(k, Pack<float>::load(run + k * size));
      total.end_of_lanes();
    }
    if (left == 0) continue;
#pragma GCC unroll 4
    for (int k = 0; k < LaneSum::kPacks; ++k, left -= size, run += size)
      if (left >= size) total.add(k, Pack<float>::load(run));
      else if (left > 0) total.add(k, Some<float>(left).load_once(run));
    total.end_of_lanes();
  }
  return static_cast<float>(total.result());
}

// Of long columns: some rows at a time are read side by side from their beginning to their end, as memory gives them out.
constexpr int kRowsAtOnce = kAddedInF32;

// each(rows): where kRowsAtOnce of the rows begin..count begin, and `spare` for rows behind the last one. Without it a group that is not
// whole is left out. Returns the first row that is.
template <class T, class Each>
inline __attribute__((always_inline)) std::int64_t in_row_groups(const T* x, const std::int64_t* steps,
                                                                 std::int64_t begin, std::int64_t count,
                                                                 const T* spare, Each each) {
  const T* row[kRowsAtOnce];
  std::int64_t first = begin;
  for (; first < (spare ? count : count - kRowsAtOnce + 1); first += kRowsAtOnce) {
    for (int s = 0; s < kRowsAtOnce; ++s) row[s] = first + s < count ? x + steps[first + s] : spare;
    each(row);
  }
  return first;
}

template <class T>
void sum_long_columns(const T* x, const std::int64_t* steps, std::int64_t count, std::int64_t columns, T* y) {
  using Acc = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
  constexpr std::int64_t kColumns = 512;
  const T zeros[kColumns] = {};  // a sum that began at zero is not changed by them
  Acc total[kColumns];
  for (std::int64_t begin = 0; begin < columns; begin += kColumns) {
    const std::int64_t n = columns - begin < kColumns ? columns - begin : kColumns;
    for (std::int64_t i = 0; i < n; ++i) total[i] = 0;
    const auto add = [&](const T* const* row) __attribute__((always_inline)) {
      for (std::int64_t i = 0; i < n; ++i)
        if constexpr (std::is_same_v<T, float>) {
          float part = 0;
#pragma GCC unroll 8
          for (int s = 0; s < kRowsAtOnce; ++s) part += row[s][i];
          total[i] += static_cast<double>(part);
        } else {
#pragma GCC unroll 8
          for (int s = 0; s < kRowsAtOnce; ++s) total[i] += row[s][i];
        }
    };
    in_row_groups<T>(x + begin, steps, 0, count, zeros, add);
    for (std::int64_t i = 0; i < n; ++i) y[begin + i] = static_cast<T>(total[i]);
  }
}

template <class T>
void sum_across(const T* x, const std::int64_t* steps, std::int64_t count, std::int64_t inner, T* y) {
  constexpr std::int64_t kLong = 64, kWide = 64;
  if (count >= kLong && inner >= kWide) return sum_long_columns(x, steps, count, inner, y);
  sum_rows<T>(
      count, inner, [=](std::int64_t s) __attribute__((always_inline)) { return x + steps[s]; }, y);
}

// ---- maxima ----

// In an order that is the same for every instruction set: by kLanes lanes side by side, then lane after lane.
template <class T>
T max_in_order(const T* x, const std::int64_t* steps, std::int64_t count, std::int64_t inner) {
  T best = x[steps[0]];
  for (std::int64_t s = 0; s < count; ++s) {
    const T* run = x + steps[s];
    std::int64_t i = 0;
    if constexpr (std::is_floating_point_v<T>) {
      if (inner >= kLanes<T>) {
        constexpr int kPacks = kLanes<T> / Pack<T>::size;
        Pack<T> most[kPacks];
        for (Pack<T>& m : most) m = Pack<T>::load_repeated(&best);
        for (; i + kLanes<T> <= inner; i += kLanes<T>)
          for (int k = 0; k < kPacks; ++k)
            most[k] = larger(most[k], Pack<T>::load(run + i + k * Pack<T>::size));
        T lanes[kLanes<T>];
        for (int k = 0; k < kPacks; ++k) most[k].store(lanes + k * Pack<T>::size);
        for (const T lane : lanes) best = larger(best, lane);
      }
    }
    for (; i < inner; ++i) best = larger(best, run[i]);
  }
  return best;
}

// In whatever order is fast, inner being at least Pack<T>::size. Some elements are seen twice.
template <class T>
T max_of_packs(const T* x, const std::int64_t* steps, std::int64_t count, std::int64_t inner) {
  constexpr int w = Pack<T>::size, kPacks = 4;
  Pack<T> most[kPacks];
  for (Pack<T>& m : most) m = Pack<T>::load(x + steps[0]);
  for (std::int64_t s = 0; s < count; ++s) {
    const T* run = x + steps[s];
    std::int64_t i = 0;
    for (; i + kPacks * w <= inner; i += kPacks * w)
#pragma GCC unroll 4
      for (int k = 0; k < kPacks; ++k) most[k] = larger(most[k], Pack<T>::load(run + i + k * w));
    for (; i + w <= inner; i += w) most[0] = larger(most[0], Pack<T>::load(run + i));
    if (i < inner) most[1] = larger(most[1], Pack<T>::load(run + inner - w));
  }
  T lanes[w];
  larger(larger(most[0], most[1]), larger(most[2], most[3])).store(lanes);
#pragma GCC unroll 4
  for (int half = w / 2; half > 0; half /= 2)
#pragma GCC unroll 8
    for (int k = 0; k < half; ++k) lanes[k] = larger(lanes[k], lanes[k + half]);
  return lanes[0];
}

template <class T>
T max(const T* x, const std::int64_t* steps, std::int64_t count, std::int64_t inner) {
  if constexpr (std::is_floating_point_v<T>) {
    if (inner >= Pack<T>::size) {
      // The order tells between zeros of both signs, and between NaNs, alone.
      const T most = max_of_packs(x, steps, count, inner);
      if (most < 0 || most > 0) return most;
    }
  }
  return max_in_order(x, steps, count, inner);
}

template <class T>
void max_across(const T* x, const std::int64_t* steps, std::int64_t count, std::int64_t inner, T* y) {
  for (std::int64_t i = 0; i < inner; ++i) y[i] = x[steps[0] + i];
  const auto take = [&](const T* const* row) __attribute__((always_inline)) {
    for (std::int64_t i = 0; i < inner; ++i) {
      T most = y[i];
#pragma GCC unroll 8
      for (int s = 0; s < kRowsAtOnce; ++s) most = larger(most, row[s][i]);
      y[i] = most;
    }
  };
  for (std::int64_t s = in_row_groups<T>(x, steps, 1, count, nullptr, take); s < count; ++s)
    for (std::int64_t i = 0; i < inner; ++i) y[i] = larger(y[i], x[steps[s] + i]);
}

// ---- short rows, of a length that the compiler knows ----

// What sum() makes of them.
template <int n, class T>
inline __attribute__((always_inline)) T sum_known(const T* x) {
  if constexpr (std::is_same_v<T, float>) {
    double part[8] = {};
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) part[i % 8] += static_cast<double>(x[i]);
    return static_cast<float>(((part[0] + part[4]) + (part[1] + part[5])) +
                              ((part[2] + part[6]) + (part[3] + part[7])));
  } else {
    static_assert(std::is_integral_v<T> || n < 8);
    std::conditional_t<std::is_integral_v<T>, std::int64_t, double> total = 0;
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) total += x[i];
    return static_cast<T>(total);
  }
}

template <int n, class T>
inline __attribute__((always_inline)) T max_known(const T* x) {
  T best = x[0];
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) best = larger(best, x[i]);
  return best;
}

// each(n): its argument is a constant.
template <int n, class T, class Each>
void in_short_rows(const T* x, std::int64_t rows, std::int64_t length, T* y, Each each) {
  if constexpr (n < ReduceKernel<T>::kMostShort) {
    if (length != n) return in_short_rows<n + 1>(x, rows, length, y, each);
    for (std::int64_t r = 0; r < rows; ++r) y[r] = each(std::integral_constant<int, n>(), x + r * n);
  }
}

template <class T>
void sum_short(const T* x, std::int64_t rows, std::int64_t n, T* y) {
  in_short_rows<1>(
      x, rows, n, y, [](auto length, const T* row) __attribute__((always_inline)) {
        return sum_known<decltype(length)::value>(row);
      });
}

template <class T>
void max_short(const T* x, std::int64_t rows, std::int64_t n, T* y) {
  in_short_rows<1>(
      x, rows, n, y, [](auto length, const T* row) __attribute__((always_inline)) {
        return max_known<decltype(length)::value>(row);
      });
}

// ---- single rows ----

template <class T, T (*reduce)(const T*, const std::int64_t*, std::int64_t, std::int64_t)>
void row(const std::byte* in, std::byte* out, std::int64_t n) {
  constexpr std::int64_t kStep = 0;
  *reinterpret_cast<T*>(out) = reduce(reinterpret_cast<const T*>(in), &kStep, 1, n);
}

template <class T>
constexpr ReduceKernel<T> kReduce{sum<T>,       sum_across<T>, max<T>,         max_across<T>,
                                  sum_short<T>, max_short<T>,  row<T, sum<T>>, row<T, max<T>>};

}  // namespace

constinit const ReduceKernel<float> reduce_f32 = kReduce<float>;
constinit const ReduceKernel<double> reduce_f64 = kReduce<double>;
constinit const ReduceKernel<std::int32_t> reduce_i32 = kReduce<std::int32_t>;

}  // namespace nestgrad::inline NESTGRAD_ISA
