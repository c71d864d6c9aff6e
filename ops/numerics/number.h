// What formulas ask of a number, float or double, beyond its operators. Pack<T> (pack.h) answers the same for
// a register of numbers, so that a formula of functions.h is written once, for the CPU's kernels, for host
// code and for CUDA kernels, with the same bits in each.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/numerics/fma.h"

namespace nestgrad::inline NESTGRAD_ISA {

// Lane: the type of one number. Int: integers of its size, for its bits.
template <class X>
struct Number;
template <>
struct Number<float> {
  using Lane = float;
  using Int = std::int32_t;
  NESTGRAD_SHARED_FN static float of_bits(Int i) {
    float x;
    memcpy(&x, &i, sizeof x);
    return x;
  }
};
template <>
struct Number<double> {
  using Lane = double;
  using Int = std::int64_t;
  NESTGRAD_SHARED_FN static double of_bits(Int i) {
    double x;
    memcpy(&x, &i, sizeof x);
    return x;
  }
};

NESTGRAD_SHARED_FN std::int32_t bits(float x) {
  std::int32_t i;
  memcpy(&i, &x, sizeof i);
  return i;
}
NESTGRAD_SHARED_FN std::int64_t bits(double x) {
  std::int64_t i;
  memcpy(&i, &x, sizeof i);
  return i;
}

// Is v an i32 after its fraction is dropped? (What a conversion
// of another number gives differs between processors.)
NESTGRAD_SHARED_FN bool has_i32(double v) { return v > -2147483649.0 && v < 2147483648.0; }
NESTGRAD_SHARED_FN bool has_i32(float v) { return v >= -2147483648.0f && v < 2147483648.0f; }

// Modulo 2^32 or 2^64, for what may overflow.
NESTGRAD_SHARED_FN std::int32_t wrapped_sum(std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
}
NESTGRAD_SHARED_FN std::int64_t wrapped_sum(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
NESTGRAD_SHARED_FN std::int32_t wrapped_difference(std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) - static_cast<std::uint32_t>(b));
}
NESTGRAD_SHARED_FN std::int64_t wrapped_difference(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}

NESTGRAD_SHARED_FN float where(bool condition, float yes, float no) { return condition ? yes : no; }
NESTGRAD_SHARED_FN double where(bool condition, double yes, double no) { return condition ? yes : no; }
NESTGRAD_SHARED_FN std::int32_t where(bool condition, std::int32_t yes, std::int32_t no) {
  return condition ? yes : no;
}
NESTGRAD_SHARED_FN std::int64_t where(bool condition, std::int64_t yes, std::int64_t no) {
  return condition ? yes : no;
}
// The smaller and the larger of a number and a bound; NaN stays NaN.
NESTGRAD_SHARED_FN float at_most(float x, float bound) { return x > bound ? bound : x; }
NESTGRAD_SHARED_FN double at_most(double x, double bound) { return x > bound ? bound : x; }
NESTGRAD_SHARED_FN float at_least(float x, float bound) { return x < bound ? bound : x; }
NESTGRAD_SHARED_FN double at_least(double x, double bound) { return x < bound ? bound : x; }
NESTGRAD_SHARED_FN bool any(bool condition) { return condition; }

// a b + c, rounded once.
#if defined(__CUDA_ARCH__) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
NESTGRAD_SHARED_FN float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
NESTGRAD_SHARED_FN double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
NESTGRAD_SHARED_FN float fma(float a, float b, float c) { return software_fma(a, b, c); }
NESTGRAD_SHARED_FN double fma(double a, double b, double c) { return software_fma(a, b, c); }
#endif

NESTGRAD_SHARED_FN float square_root(float x) { return __builtin_sqrtf(x); }
NESTGRAD_SHARED_FN double square_root(double x) { return __builtin_sqrt(x); }

template <class Fn>
NESTGRAD_SHARED_FN float each_lane(float x, Fn fn) {
  return fn(x);
}
template <class Fn>
NESTGRAD_SHARED_FN double each_lane(double x, Fn fn) {
  return fn(x);
}

}  // namespace nestgrad::inline NESTGRAD_ISA
