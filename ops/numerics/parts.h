// What the functions of functions.h have in common: polynomials, sums in two pieces, powers of two.
#pragma once

#include "ops/numerics/number.h"

namespace nestgrad::inline NESTGRAD_ISA {

namespace m {

template <class X>
constexpr bool kSingle = sizeof(typename Number<X>::Lane) == 4;
template <class X>
using IntOf = typename Number<X>::Int;
template <class X>
using LaneInt = typename Number<typename Number<X>::Lane>::Int;

// The layout of a number: sign, exponent field, fraction.
template <class X>
constexpr int kFractionBits = kSingle<X> ? 23 : 52;
template <class X>
constexpr int kBias = kSingle<X> ? 127 : 1023;
template <class X>
constexpr double kSmallestNormal = kSingle<X> ? 0x1p-126 : 0x1p-1022;
template <class X>
constexpr double kLargest = kSingle<X> ? 0x1.fffffep127 : 0x1.fffffffffffffp1023;

template <class X>
NESTGRAD_SHARED_FN X infinity() {
  return X(static_cast<typename Number<X>::Lane>(__builtin_huge_val()));
}
template <class X>
NESTGRAD_SHARED_FN X not_a_number() {
  return X(static_cast<typename Number<X>::Lane>(__builtin_nan("")));
}

// c0 + c1 x + c2 x^2 + ..., by Horner's rule.
template <class X>
NESTGRAD_SHARED_FN X polynomial(X, double c0) {
  return X(c0);
}
template <class X, class... C>
NESTGRAD_SHARED_FN X polynomial(X x, double c0, C... c) {
  return fma(polynomial(x, c...), x, X(c0));
}

template <class X>
NESTGRAD_SHARED_FN IntOf<X> sign_bit() {
  return bits(X(-0.0));
}
template <class X>
NESTGRAD_SHARED_FN X abs(X x) {
  return Number<X>::of_bits(bits(x) & (bits(X(-0.0)) ^ IntOf<X>(LaneInt<X>{-1})));
}
// size >= 0 with the sign of x.
template <class X>
NESTGRAD_SHARED_FN X with_sign_of(X x, X size) {
  return Number<X>::of_bits(bits(size) | (bits(x) & sign_bit<X>()));
}

// A number in two pieces: high is the sum, rounded, and low what the rounding lost.
template <class X>
struct Two {
  X high, low;
};
// a + b exactly, where a is 0 or its exponent is not below that of b (Dekker).
template <class X>
NESTGRAD_SHARED_FN Two<X> fast_sum(X a, X b) {
  const X sum = a + b;
  return {sum, b - (sum - a)};
}
// a b exactly.
template <class X>
NESTGRAD_SHARED_FN Two<X> product(X a, X b) {
  const X high = a * b;
  return {high, fma(a, b, -high)};
}
// a + b and a b, but for errors of the size of the square of the rounding unit.
template <class X>
NESTGRAD_SHARED_FN Two<X> sum(Two<X> a, Two<X> b) {
  const Two<X> s = fast_sum(a.high, b.high);
  return fast_sum(s.high, s.low + (a.low + b.low));
}
template <class X>
NESTGRAD_SHARED_FN Two<X> product(Two<X> a, Two<X> b) {
  const Two<X> p = product(a.high, b.high);
  return fast_sum(p.high, p.low + fma(a.high, b.low, a.low * b.high));
}

// An integer as a number and in the lowest bits of an integer.
template <class X>
struct Whole {
  X value;
  IntOf<X> low_bits;
};
// Added to a number well below 2^fraction bits, it leaves no room for a fraction: the sum is rounded to an
// integer, which stands in its lowest bits.
template <class X>
constexpr double kRounder = kSingle<X> ? 0x1.8p23 : 0x1.8p52;
// The integer nearest to x scale.
template <class X>
NESTGRAD_SHARED_FN Whole<X> nearest(X x, X scale) {
  const X shifted = fma(x, scale, X(kRounder<X>));
  return {shifted - X(kRounder<X>), bits(shifted)};
}

// 2^(n + more) where that is a normal number; n stands at the place of the exponent. (Sums of integers wrap,
// since the bits of a NaN may give any integer.)
template <class X>
NESTGRAD_SHARED_FN X power_of_two(IntOf<X> n, int more = 0) {
  const IntOf<X> one(static_cast<LaneInt<X>>(static_cast<LaneInt<X>>(kBias<X> + more) << kFractionBits<X>));
  return Number<X>::of_bits(wrapped_sum(n, one));
}
template <class X>
NESTGRAD_SHARED_FN X power_of_two(Whole<X> n, int more = 0) {
  return power_of_two<X>(n.low_bits << kFractionBits<X>, more);
}
// 2^n as a product of two numbers, where |n| is at most twice the bias: n/2, rounded down, and the rest.
template <class X>
struct PowerPair {
  X half, rest;
};
template <class X>
NESTGRAD_SHARED_FN PowerPair<X> power_pair(Whole<X> n) {
  const IntOf<X> half = (n.low_bits >> 1) << kFractionBits<X>;
  return {power_of_two<X>(half), power_of_two<X>(wrapped_difference(n.low_bits << kFractionBits<X>, half))};
}

// x 2^n, rounded once, for |n| up to twice the bias; x is not far from 1
// (2^-20 to 2^20, or 0 or infinite or NaN). In two steps, since 2^n alone may
// not be a number: the first one is exact, so gradual underflow is right.
template <class X>
NESTGRAD_SHARED_FN X scaled(X x, Whole<X> n) {
  if constexpr (requires { times_power_of_two(x, n.value); }) {
    return times_power_of_two(x, n.value);
  } else {
    const PowerPair<X> power = power_pair(n);
    return (x * power.half) * power.rest;
  }
}

}  // namespace m

}  // namespace nestgrad::inline NESTGRAD_ISA
