// What kernels share: the shared memory of a block, sums and maxima over a warp, positions in arrays. Device
// code of .cu files alone.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/fault.h"
#include "ops/numerics/number.h"

// NESTGRAD_SHARED declares `name`, a pointer to the dynamic shared memory of the block. NESTGRAD_UNROLL, .._ONCE and .._WHOLE
// are for the loop after them: four turns at once, one, or all.
#ifdef __CUDACC__
#define NESTGRAD_UNROLL _Pragma("unroll 4")
#define NESTGRAD_UNROLL_ONCE _Pragma("unroll 1")
#define NESTGRAD_UNROLL_WHOLE _Pragma("unroll")
#define NESTGRAD_SHARED(T, name)                                         \
  extern __shared__ __align__(16) unsigned char nestgrad_shared_bytes[]; \
  T* const name = reinterpret_cast<T*>(nestgrad_shared_bytes)
#else
#include "cuda_emulator/emulator.h"
#define NESTGRAD_UNROLL
#define NESTGRAD_UNROLL_ONCE
#define NESTGRAD_UNROLL_WHOLE
#define NESTGRAD_SHARED(T, name) T* const name = reinterpret_cast<T*>(::nestgrad::emulator::shared_memory())
#endif

namespace nestgrad::cuda {

constexpr unsigned kWarp = 32, kFullWarp = 0xffffffffu;

// Notes a wrong number, if none was noted before.
__device__ inline void report(Fault* fault, int site, int index) {
  if (atomicCAS(&fault->site, 0, site) == 0) fault->kind = Fault::Kind::index, fault->index = index;
}
__device__ inline void report(Fault* fault, int site, float number) {
  if (atomicCAS(&fault->site, 0, site) == 0) fault->kind = Fault::Kind::f32, fault->f32 = number;
}
__device__ inline void report(Fault* fault, int site, double number) {
  if (atomicCAS(&fault->site, 0, site) == 0) fault->kind = Fault::Kind::f64, fault->f64 = number;
}

// Into the second-level cache.
__device__ inline void prefetch([[maybe_unused]] const std::byte* address) {
#ifdef __CUDACC__
  asm volatile("prefetch.L2 [%0];" ::"l"(address));
#endif
}

__device__ inline std::int64_t global_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

// The two reductions: what a thread has of one. `add` takes an element, `absorb` what another thread has; who adds more than some tens
// of elements calls `settle` after each kSettleAfter.
constexpr int kSettleAfter = 8;

template <class T>
struct Sum {
  T sum = T(0);
  __device__ explicit Sum(T = T(0)) {}
  __device__ void add(T x) {
    if constexpr (std::is_integral_v<T>)  // the bits of a sum in 64, cut to 32
      sum = static_cast<T>(static_cast<std::uint32_t>(sum) + static_cast<std::uint32_t>(x));
    else sum += x;
  }
  __device__ void absorb(const Sum& other) { add(other.sum); }
  __device__ void settle() {}
  __device__ Sum from_lane(unsigned step) const {
    Sum other;
    other.sum = __shfl_xor_sync(kFullWarp, sum, static_cast<int>(step));
    return other;
  }
  __device__ T value() const { return sum; }
};

// In f32 with what rounding took away beside it, almost as if it were added up in double (Neumaier 1974; no GPU has to be fast in
// double): of n terms the error is at most 2^-24 of the sum, and n 2^-45 of the sum of their absolute values.
template <>
struct Sum<float> {
  float sum = 0, rest = 0;
  __device__ explicit Sum(float = 0) {}
  __device__ void add(float x) {
    const float next = sum + x, back = next - sum;
    rest += (sum - (next - back)) + (x - back);
    sum = next;
  }
  __device__ void absorb(const Sum& other) {
    add(other.sum);
    rest += other.rest;
  }
  // A rest that has grown rounds what is added to it.
  __device__ void settle() {
    const float all = value(), back = all - sum, left = (sum - (all - back)) + (rest - back);
    sum = all;
    rest = left - left == 0 ? left : 0;
  }
  __device__ Sum from_lane(unsigned step) const {
    Sum other;
    other.sum = __shfl_xor_sync(kFullWarp, sum, static_cast<int>(step));
    other.rest = __shfl_xor_sync(kFullWarp, rest, static_cast<int>(step));
    return other;
  }
  // The rest is no number once the sum is infinite, or none.
  __device__ float value() const { return rest - rest == 0 ? sum + rest : sum; }
};

// NaN wins, so that it is seen. first: one of the elements.
template <class T>
struct Max {
  T best;
  __device__ explicit Max(T first) : best(first) {}
  __device__ void add(T x) { best = x == x ? (x > best ? x : best) : x; }
  __device__ void absorb(const Max& other) { add(other.best); }
  __device__ void settle() {}
  __device__ Max from_lane(unsigned step) const {
    return Max(__shfl_xor_sync(kFullWarp, best, static_cast<int>(step)));
  }
  __device__ T value() const { return best; }
};

// Of all lanes, in a fixed order; every lane has the result. All lanes of the warp must take part.
template <class R>
__device__ R over_warp(R mine) {
  for (unsigned step = kWarp / 2; step > 0; step /= 2) mine.absorb(mine.from_lane(step));
  return mine;
}

// from[at(k)] for k = begin, begin + step, .. before end: four results at once, since each has to wait for itself alone.
// from[0] is one of the terms, or there are none.
template <template <class> class R, class T, class At>
__device__ R<T> reduce_at(const At& at, const T* from, std::int64_t begin, std::int64_t end,
                          std::int64_t step) {
  constexpr int kAtOnce = 4;
  R<T> part[kAtOnce] = {R<T>(*from), R<T>(*from), R<T>(*from), R<T>(*from)};
  std::int64_t k = begin;
  // What is added up waits for itself: more turns at once would only be more code.
  NESTGRAD_UNROLL_ONCE
  for (int added = 1; k + (kAtOnce - 1) * step < end; k += kAtOnce * step, ++added) {
    T term[kAtOnce];
    for (int i = 0; i < kAtOnce; ++i) term[i] = from[at(k + i * step)];
    for (int i = 0; i < kAtOnce; ++i) part[i].add(term[i]);
    if (added % kSettleAfter == 0)
      for (int i = 0; i < kAtOnce; ++i) part[i].settle();
  }
  for (; k < end; k += step) part[0].add(from[at(k)]);
  part[0].absorb(part[1]);
  part[2].absorb(part[3]);
  part[0].absorb(part[2]);
  return part[0];
}

// The running sums of one line of elements `stride` apart.
template <class T>
__device__ void sum_along(const T* x, T* y, std::int64_t line, std::int64_t extent, std::int64_t stride,
                          bool reverse) {
  const std::int64_t begin = line / stride * extent * stride + line % stride;
  Sum<T> sum;
  for (std::int64_t i = 0; i < extent; ++i) {
    const std::int64_t at = begin + (reverse ? extent - 1 - i : i) * stride;
    sum.add(x[at]);
    if (i % kSettleAfter == kSettleAfter - 1) sum.settle();
    y[at] = sum.value();
  }
}

}  // namespace nestgrad::cuda
