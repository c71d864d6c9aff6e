// The language of kernels, as far as the backend uses it: qualifiers, built-in variables and functions.
// Functions that round less exactly on a GPU (__expf ...) are exact here.
#pragma once

#include <math.h>

#include <bit>
#include <cstdint>
#include <cstring>

#include "thread.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ emulated_kernels_take_their_shared_memory_from_shared_memory

inline constexpr const uint3& threadIdx = nestgrad::emulator::here.thread;
inline constexpr const uint3& blockIdx = nestgrad::emulator::here.block;
inline constexpr const dim3& blockDim = nestgrad::emulator::here.block_extent;
inline constexpr const dim3& gridDim = nestgrad::emulator::here.grid_extent;
inline constexpr int warpSize = 32;

namespace nestgrad::emulator {

template <class T>
T shuffle(const char* call, unsigned mask, T value, unsigned source, Where where) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 32 or 64 bits");
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = meet_lanes(call, mask, bits, source, where).value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace nestgrad::emulator

// Waiting for each other.

inline void __syncthreads(nestgrad::emulator::Where where = nestgrad::emulator::Where::current()) {
  nestgrad::emulator::meet_block(where);
}
inline void __syncwarp(unsigned mask = ~0u,
                       nestgrad::emulator::Where where = nestgrad::emulator::Where::current()) {
  nestgrad::emulator::sync_lanes(mask, where);
}
inline void __threadfence() {}
inline void __threadfence_block() {}
[[noreturn]] inline void __trap(nestgrad::emulator::Where where = nestgrad::emulator::Where::current()) {
  nestgrad::emulator::stop_kernel("__trap", where);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              nestgrad::emulator::Where where = nestgrad::emulator::Where::current()) {
  const unsigned segment = nestgrad::emulator::here.lane & ~unsigned(width - 1);
  return nestgrad::emulator::shuffle("__shfl_sync", mask, value,
                                     segment | (unsigned(source) & unsigned(width - 1)), where);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 nestgrad::emulator::Where where = nestgrad::emulator::Where::current()) {
  const unsigned lane = nestgrad::emulator::here.lane, within = lane & unsigned(width - 1);
  return nestgrad::emulator::shuffle("__shfl_up_sync", mask, value, within < delta ? lane : lane - delta,
                                     where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   nestgrad::emulator::Where where = nestgrad::emulator::Where::current()) {
  const unsigned lane = nestgrad::emulator::here.lane, within = lane & unsigned(width - 1);
  return nestgrad::emulator::shuffle("__shfl_down_sync", mask, value,
                                     within + delta >= unsigned(width) ? lane : lane + delta, where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32,
                  nestgrad::emulator::Where where = nestgrad::emulator::Where::current()) {
  const unsigned lane = nestgrad::emulator::here.lane, source = lane ^ unsigned(lanes);
  const unsigned last = lane | unsigned(width - 1);
  return nestgrad::emulator::shuffle("__shfl_xor_sync", mask, value, source > last ? lane : source, where);
}
inline unsigned __ballot_sync(unsigned mask, int vote,
                              nestgrad::emulator::Where where = nestgrad::emulator::Where::current()) {
  return nestgrad::emulator::meet_lanes("__ballot_sync", mask, vote != 0, 0, where).votes;
}
inline int __any_sync(unsigned mask, int vote,
                      nestgrad::emulator::Where where = nestgrad::emulator::Where::current()) {
  return nestgrad::emulator::meet_lanes("__any_sync", mask, vote != 0, 0, where).votes != 0;
}
inline int __all_sync(unsigned mask, int vote,
                      nestgrad::emulator::Where where = nestgrad::emulator::Where::current()) {
  return nestgrad::emulator::meet_lanes("__all_sync", mask, vote != 0, 0, where).votes == mask;
}

// Atomics. All return what was there before.

namespace nestgrad::emulator {

template <class T, class Fn>
T atomic_update(T* at, Fn fn) {
  T before;
  __atomic_load(at, &before, __ATOMIC_RELAXED);
  for (;;) {
    T after = fn(before);
    if (__atomic_compare_exchange(at, &before, &after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      return before;
  }
}

}  // namespace nestgrad::emulator

#define NESTGRAD_EMULATOR_ATOMIC(function, type, result)                       \
  inline type function(type* at, type value) {                                 \
    return nestgrad::emulator::atomic_update(                                  \
        at, [value]([[maybe_unused]] type before) -> type { return result; }); \
  }
NESTGRAD_EMULATOR_ATOMIC(atomicAdd, int, before + value)
NESTGRAD_EMULATOR_ATOMIC(atomicAdd, unsigned, before + value)
NESTGRAD_EMULATOR_ATOMIC(atomicAdd, unsigned long long, before + value)
NESTGRAD_EMULATOR_ATOMIC(atomicAdd, float, before + value)
NESTGRAD_EMULATOR_ATOMIC(atomicAdd, double, before + value)
NESTGRAD_EMULATOR_ATOMIC(atomicMin, int, value < before ? value : before)
NESTGRAD_EMULATOR_ATOMIC(atomicMin, unsigned, value < before ? value : before)
NESTGRAD_EMULATOR_ATOMIC(atomicMax, int, value > before ? value : before)
NESTGRAD_EMULATOR_ATOMIC(atomicMax, unsigned, value > before ? value : before)
NESTGRAD_EMULATOR_ATOMIC(atomicOr, unsigned, before | value)
NESTGRAD_EMULATOR_ATOMIC(atomicExch, int, value)
NESTGRAD_EMULATOR_ATOMIC(atomicExch, unsigned, value)
NESTGRAD_EMULATOR_ATOMIC(atomicExch, float, value)
#undef NESTGRAD_EMULATOR_ATOMIC

template <class T>
T atomicCAS(T* at, T expected, T value) {
  return nestgrad::emulator::atomic_update(at, [&](T before) { return before == expected ? value : before; });
}

// Numbers.

template <class T>
T __ldg(const T* at) {
  return *at;
}

inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }

inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(std::uint64_t{a} * b >> 32); }
inline int __mulhi(int a, int b) { return int(std::int64_t{a} * b >> 32); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(unsigned(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(unsigned(x)) + 1; }

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline long min(long a, long b) { return a < b ? a : b; }
inline long max(long a, long b) { return a > b ? a : b; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline long long max(long long a, long long b) { return a > b ? a : b; }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline double rsqrt(double x) { return 1 / sqrt(x); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double x) { return sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }
// The C library declares functions of these names without defining them.
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
