// Sums and maxima.
#include <type_traits>

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
  LaneSum total;
  for (std::int64_t s = 0; s < count; ++s) {
    const float* run = x + steps[s];
    std::int64_t i = 0;
    for (; i + kLanes<float> <= inner; i += kLanes<float>) total.add_row(run + i);
    total.add_rest(run + i, inner - i);
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
template <int Packs>
struct ColumnSums {
  Register<double>::Raw total[2 * Packs] = {};

  template <class Load>
  inline __attribute__((always_inline)) void add(const std::int64_t* steps, std::int64_t count, Load load) {
    for (std::int64_t first = 0; first < count; first += kAddedInF32) {
      const std::int64_t end = count < first + kAddedInF32 ? count : first + kAddedInF32;
      Register<float>::Raw part[Packs] = {};
      for (std::int64_t s = first; s < end; ++s)
#pragma GCC unroll 8
        for (int i = 0; i < Packs; ++i) part[i] += load(steps[s] + i * Pack<float>::size).raw;
#pragma GCC unroll 8
      for (int i = 0; i < Packs; ++i) add_halves(part[i], total[2 * i], total[2 * i + 1]);
    }
  }
  inline __attribute__((always_inline)) void store(float* y) const {
    typedef float Half __attribute__((vector_size(kRegisterBytes / 2)));
#pragma GCC unroll 16
    for (int i = 0; i < 2 * Packs; ++i) {
      const Half half = __builtin_convertvector(total[i], Half);
      __builtin_memcpy(y + i * Pack<float>::size / 2, &half, sizeof half);
    }
  }
};

template <>
void sum_across(const float* x, const std::int64_t* steps, std::int64_t count, std::int64_t inner, float* y) {
  constexpr int size = Pack<float>::size;
  std::int64_t i = 0;
  const auto whole = [&](std::int64_t at) { return Pack<float>::load(x + i + at); };
  for (; i + 4 * size <= inner; i += 4 * size) {
    ColumnSums<4> sums;
    sums.add(steps, count, whole);
    sums.store(y + i);
  }
  for (; i + size <= inner; i += size) {
    ColumnSums<1> sums;
    sums.add(steps, count, whole);
    sums.store(y + i);
  }
  if (i == inner) return;
  ColumnSums<1> sums;
  sums.add(steps, count, [&](std::int64_t at) {
    float rest[size] = {};
    for (std::int64_t k = 0; i + k < inner; ++k) rest[k] = x[i + at + k];
    return Pack<float>::load(rest);
  });
  float rest[size];
  sums.store(rest);
  for (std::int64_t k = 0; i + k < inner; ++k) y[i + k] = rest[k];
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
