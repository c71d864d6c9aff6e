// Sums and maxima.
#include <type_traits>

#include "ops/kernels/some.h"
#include "ops/kernels/table.h"
#include "ops/numerics/lane_sum.h"

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

// As many columns as there is room for in registers.
template <int Columns, class T>
inline __attribute__((always_inline)) void sum_columns(const T* x, const std::int64_t* steps,
                                                       std::int64_t count, T* y) {
  using Acc = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
  Acc acc[Columns] = {};
  for (std::int64_t s = 0; s < count; ++s) {
    const T* row = x + steps[s];
    __asm__("" : "+r"(row));  // or compilers make two rows a loop of single elements
    for (int i = 0; i < Columns; ++i) acc[i] += static_cast<Acc>(row[i]);
  }
  for (int i = 0; i < Columns; ++i) y[i] = static_cast<T>(acc[i]);
}

template <class T>
void sum_across(const T* x, const std::int64_t* steps, std::int64_t count, std::int64_t inner, T* y) {
  constexpr int kColumns = kRegisterBytes;  // eight registers of doubles
  std::int64_t i = 0;
  for (; i + kColumns <= inner; i += kColumns) sum_columns<kColumns>(x + i, steps, count, y + i);
  for (; i + 8 <= inner; i += 8) sum_columns<8>(x + i, steps, count, y + i);
  for (; i < inner; ++i) sum_columns<1>(x + i, steps, count, y + i);
}

// Of f32, as many rows as a lane adds up (lane_sum.h) are added up in f32, and these sums in double. load(at):
// the register of elements from `at` on.
template <int Packs, class Load>
inline __attribute__((always_inline)) void sum_columns_f32(const std::int64_t* steps, std::int64_t count,
                                                           Load load, float* y) {
  typedef float Half __attribute__((vector_size(kRegisterBytes / 2)));
  constexpr int size = Pack<float>::size;
  Register<double>::Raw total[2 * Packs] = {};
  for (std::int64_t first = 0; first < count; first += kAddedInF32) {
    const std::int64_t end = count < first + kAddedInF32 ? count : first + kAddedInF32;
    Register<float>::Raw part[Packs] = {};
    for (std::int64_t s = first; s < end; ++s)
#pragma GCC unroll 8
      for (int i = 0; i < Packs; ++i) part[i] += load(steps[s] + i * size).raw;
#pragma GCC unroll 8
    for (int i = 0; i < Packs; ++i) add_halves(part[i], total[2 * i], total[2 * i + 1]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 2 * Packs; ++i) {
    const Half half = __builtin_convertvector(total[i], Half);
    __builtin_memcpy(y + i * size / 2, &half, sizeof half);
  }
}

template <>
void sum_across(const float* x, const std::int64_t* steps, std::int64_t count, std::int64_t inner, float* y) {
  constexpr int size = Pack<float>::size;
  const auto whole = [&](std::int64_t at) { return Pack<float>::load(x + at); };
  if (inner < size) {
    const Some<float> some(inner);
    float wide[size];
    sum_columns_f32<1>(
        steps, count, [&](std::int64_t at) { return some.load_once(x + at); }, wide);
    return some.store(Pack<float>::load(wide), y);
  }
  std::int64_t i = 0;
  for (; i + 4 * size <= inner; i += 4 * size)
    sum_columns_f32<4>(
        steps, count, [&](std::int64_t at) { return whole(i + at); }, y + i);
  for (; i < inner; i += size) {  // the last register ends with the columns
    const std::int64_t from = i + size <= inner ? i : inner - size;
    sum_columns_f32<1>(
        steps, count, [&](std::int64_t at) { return whole(from + at); }, y + from);
  }
}

// ---- maxima ----

// Of numbers or packs of them.
template <class X>
inline __attribute__((always_inline)) X larger(X a, X b) {
  return where(b == b, where(b > a, b, a), b);
}

// By kLanes lanes side by side, so that of zeros of both signs the same one is found.
template <class T>
T max(const T* x, const std::int64_t* steps, std::int64_t count, std::int64_t inner) {
  T best = x[steps[0]];
  for (std::int64_t s = 0; s < count; ++s) {
    const T* run = x + steps[s];
    std::int64_t i = 0;
    if constexpr (std::is_floating_point_v<T>) {
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
    for (; i < inner; ++i) best = larger(best, run[i]);
  }
  return best;
}

template <class T>
void max_across(const T* x, const std::int64_t* steps, std::int64_t count, std::int64_t inner, T* y) {
  for (std::int64_t i = 0; i < inner; ++i) y[i] = x[steps[0] + i];
  for (std::int64_t s = 1; s < count; ++s)
    for (std::int64_t i = 0; i < inner; ++i) y[i] = larger(y[i], x[steps[s] + i]);
}

// ---- single rows ----

template <class T, T (*reduce)(const T*, const std::int64_t*, std::int64_t, std::int64_t)>
void row(const std::byte* in, std::byte* out, std::int64_t n) {
  constexpr std::int64_t kStep = 0;
  *reinterpret_cast<T*>(out) = reduce(reinterpret_cast<const T*>(in), &kStep, 1, n);
}

template <class T>
constexpr ReduceKernel<T> kReduce{sum<T>,        sum_across<T>,  max<T>,
                                  max_across<T>, row<T, sum<T>>, row<T, max<T>>};

}  // namespace

constinit const ReduceKernel<float> reduce_f32 = kReduce<float>;
constinit const ReduceKernel<double> reduce_f64 = kReduce<double>;
constinit const ReduceKernel<std::int32_t> reduce_i32 = kReduce<std::int32_t>;

}  // namespace nestgrad::inline NESTGRAD_ISA
