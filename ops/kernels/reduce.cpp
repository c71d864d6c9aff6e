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

// As many columns as there is room for in registers. Of f32, as many rows as a lane adds up (lane_sum.h) are
// added up in f32, and these sums in double.
template <int Columns, class T>
inline __attribute__((always_inline)) void sum_columns(const T* x, const std::int64_t* steps,
                                                       std::int64_t count, T* y) {
  using Total = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
  using Part = std::conditional_t<std::is_same_v<T, float>, float, Total>;
  const std::int64_t rows = std::is_same_v<T, float> ? kAddedInF32 : count;
  Total total[Columns] = {};
  for (std::int64_t first = 0; first < count; first += rows) {
    Part part[Columns] = {};
    for (std::int64_t s = first; s < (first + rows < count ? first + rows : count); ++s) {
      const T* row = x + steps[s];
      __asm__("" : "+r"(row));  // or compilers make two rows a loop of single elements
      for (int i = 0; i < Columns; ++i) part[i] += static_cast<Part>(row[i]);
    }
    for (int i = 0; i < Columns; ++i) total[i] += static_cast<Total>(part[i]);
  }
  for (int i = 0; i < Columns; ++i) y[i] = static_cast<T>(total[i]);
}

template <class T>
void sum_across(const T* x, const std::int64_t* steps, std::int64_t count, std::int64_t inner, T* y) {
  constexpr int kColumns = kRegisterBytes;  // eight registers of doubles
  std::int64_t i = 0;
  for (; i + kColumns <= inner; i += kColumns) sum_columns<kColumns>(x + i, steps, count, y + i);
  for (; i + 8 <= inner; i += 8) sum_columns<8>(x + i, steps, count, y + i);
  for (; i < inner; ++i) sum_columns<1>(x + i, steps, count, y + i);
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
