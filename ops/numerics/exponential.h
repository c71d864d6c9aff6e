// e^x and what is made of it: expm1, tanh, sigmoid, silu and gelu_tanh.
//
// x = n ln 2 + r with an integer n and |r| <= ln 2 / 2 (Cody and Waite, "Software Manual for the Elementary
// Functions", 1980): ln 2 is in two pieces of which the first has so few bits that n times it is exact. e^r
// is a minimax polynomial (fpminimax of Sollya), with a relative error of 3.4e-9 in f32 and 3.9e-18 in f64.
#pragma once

#include "ops/numerics/parts.h"

namespace nestgrad::inline NESTGRAD_ISA {

namespace m {

template <class X>
constexpr double kLog2OfE = 0x1.71547652b82fep0;
template <class X>
constexpr double kLn2High = kSingle<X> ? 0x1.62e4p-1 : 0x1.62e42fefa4p-1;
template <class X>
constexpr double kLn2Low = kSingle<X> ? 0x1.7f7d1cp-20 : -0x1.8432a1b0e2634p-43;
// e^x is 0 below -kMostNegative, infinite above kMostPositive.
template <class X>
constexpr double kMostNegative = kSingle<X> ? 104.5 : 746;
template <class X>
constexpr double kMostPositive = kSingle<X> ? 89 : 710;

// x = n ln 2 + rest.
template <class X>
struct Reduced {
  Whole<X> n;
  X rest;
};
template <class X>
NESTGRAD_SHARED_FN Reduced<X> reduced(X x) {
  const Whole<X> n = nearest(x, X(kLog2OfE<X>));
  return {n, fma(n.value, X(-kLn2Low<X>), fma(n.value, X(-kLn2High<X>), x))};
}
// Of the sum of x and a correction, which is small beside 1.
template <class X>
NESTGRAD_SHARED_FN Reduced<X> reduced(X x, X correction) {
  const Whole<X> n = nearest(x, X(kLog2OfE<X>));
  return {n, fma(n.value, X(-kLn2High<X>), x) + fma(n.value, X(-kLn2Low<X>), correction)};
}

// (e^r - 1) / r for |r| <= ln 2 / 2, and e^r.
template <class X>
NESTGRAD_SHARED_FN X exp_slope(X r) {
  if constexpr (kSingle<X>)
    return polynomial(r, 1, 0x1.fffffap-2, 0x1.55549p-3, 0x1.555a22p-5, 0x1.123b04p-7, 0x1.695414p-10);
  else
    return polynomial(r, 1, 0x1.000000000000ap-1, 0x1.55555555554f9p-3, 0x1.5555555550629p-5,
                      0x1.1111111127d0ap-7, 0x1.6c16c184a9d23p-10, 0x1.a01a012aa85ebp-13,
                      0x1.a01998b27e7ecp-16, 0x1.71df22feeb18p-19, 0x1.28aeb476bf42dp-22,
                      0x1.ad85b8e6c59eep-26);
}
template <class X>
NESTGRAD_SHARED_FN X exp_of_rest(X r) {
  return fma(exp_slope(r), r, X(1));
}
template <class X>
NESTGRAD_SHARED_FN X exp(Reduced<X> x) {
  return scaled(exp_of_rest(x.rest), x.n);
}

template <class X>
NESTGRAD_SHARED_FN X exp(X x) {
  // A product that underflows takes some processors a hundred times as long as another, and what attention
  // masks out is minus infinity: there, e^0 is computed and thrown away.
  const auto zero = x < X(-kMostNegative<X>);
  return where(zero, X(0), exp(reduced(at_most(where(zero, X(0), x), X(kMostPositive<X>)))));
}

// e^r - 1 = r + r^2 s(r). The polynomial has a relative error of 1.4e-8 in f32 and 2.7e-19 in f64.
template <class X>
NESTGRAD_SHARED_FN X expm1_curve(X r) {
  if constexpr (kSingle<X>)
    return polynomial(r, 0x1p-1, 0x1.555554p-3, 0x1.5554fp-5, 0x1.111306p-7, 0x1.6d43c2p-10, 0x1.9e0de4p-13);
  else
    return polynomial(r, 0x1p-1, 0x1.5555555555559p-3, 0x1.555555555554dp-5, 0x1.111111110f63p-7,
                      0x1.6c16c16c1ab0fp-10, 0x1.a01a01b01d04fp-13, 0x1.a01a018e13ff5p-16,
                      0x1.71ddf7b89cf8ap-19, 0x1.27e51301d49a4p-22, 0x1.af5fe54cbb8adp-26,
                      0x1.1f1aea4f7a8ebp-29);
}

// e^x - 1 = 2^n (r + t) + (2^n - 1) with t = r^2 s(r). What rounding r loses is added to t.
template <class X>
NESTGRAD_SHARED_FN X expm1(X x) {
  const X bounded = at_most(at_least(x, X(-40)), X(kMostPositive<X>));
  const Whole<X> n = nearest(bounded, X(kLog2OfE<X>));
  const X first = fma(n.value, X(-kLn2High<X>), bounded), second = n.value * X(-kLn2Low<X>);
  const X r = first + second, lost = (first - r) + second;
  const X t = fma(r * r, expm1_curve(r), lost);
  // Half of the power, for 2^n may be above all numbers.
  const X half = power_of_two(n, -1);
  const X sum = fma(half, t, fma(half, r, half - X(0.5)));
  return where(abs(x) < X(kSingle<X> ? 0x1p-30 : 0x1p-60), x, sum + sum);
}

// With c = r coth r it is e^2r = (c + r) / (c - r). So for |x| = n ln 2 / 2 + r, |r|
// <= ln 2 / 4, it is tanh |x| = 1 - 2 (c - r) / (2^n (c + r) + (c - r)); where that
// is below 1/2, tanh r = r / c with r = |x| has less of the rounding errors. c is 1
// + r^2 times a polynomial of r^2, to 9e-10 in f32 and 1e-18 in f64 (fpminimax).
template <class X>
NESTGRAD_SHARED_FN X tanh(X x) {
  const X size = at_most(abs(x), X(kSingle<X> ? 10 : 20));
  const auto small = size < X(0.5494);
  const Whole<X> n = nearest(size, X(2 * kLog2OfE<X>));
  // ln 2 / 2 in one piece: the larger n, the less the result depends on its error.
  const X r = where(small, size, fma(n.value, X(-0x1.62e42fefa39efp-2), size)), square = r * r;
  X c;
  if constexpr (kSingle<X>)
    c = polynomial(square, 1, 0x1.555556p-2, -0x1.6c176cp-6, 0x1.155b3cp-9, -0x1.a9a6dcp-13);
  else
    c = polynomial(square, 1, 0x1.5555555555555p-2, -0x1.6c16c16c16817p-6, 0x1.1566abbfa7c4ep-9,
                   -0x1.bbd7789c0ae43p-13, 0x1.66a8ba717ecep-16, -0x1.22749f8829e81p-19,
                   0x1.d41539fbd2891p-23, -0x1.50f4afaa7a357p-26);
  const X less = c - r;
  const X ratio = where(small, r, less) / where(small, c, fma(power_of_two(n), c + r, less));
  return with_sign_of(x, where(small, ratio, fma(X(-2), ratio, X(1))));
}

// factor / (1 + 2^n (1 + slope r)). With 2^n = a b, where a and b are about the root of 2^n, it is
// factor / (a + (slope a r + 1/b)) / b: nothing overflows, and where the result is denormal, only the last
// step rounds it to that.
template <class X>
NESTGRAD_SHARED_FN X over_one_plus(X factor, Whole<X> n, X slope, X r) {
  const IntOf<X> half = (n.low_bits >> 1) << kFractionBits<X>;
  const X a = power_of_two<X>(wrapped_difference(n.low_bits << kFractionBits<X>, half));
  const X over_b = power_of_two<X>(wrapped_difference(IntOf<X>(LaneInt<X>{0}), half));
  return factor / (a + fma(slope, a * r, over_b)) * over_b;
}

// x / (1 + e^-x) is 0 (and so is 1 / (1 + e^-x)) below the first bound; above the second one, 1 + e^-x is 1.
template <class X>
constexpr double kSigmoidLow = kSingle<X> ? -112 : -760;
template <class X>
constexpr double kSigmoidHigh = kSingle<X> ? 20 : 40;

template <class X>
NESTGRAD_SHARED_FN X over_one_plus_exp(X factor, X minus_exponent) {
  const Reduced<X> r = reduced(-minus_exponent);
  return over_one_plus(factor, r.n, exp_slope(r.rest), r.rest);
}

template <class X>
NESTGRAD_SHARED_FN X sigmoid(X x) {
  return over_one_plus_exp(X(1), at_most(at_least(x, X(kSigmoidLow<X>)), X(kSigmoidHigh<X>)));
}

template <class X>
NESTGRAD_SHARED_FN X silu(X x) {
  const X bounded = at_least(x, X(kSigmoidLow<X>));
  return over_one_plus_exp(bounded, at_most(bounded, X(kSigmoidHigh<X>)));
}

// (2^r - 1) / r for |r| <= 1/2; fpminimax, relative error of 2^r 3.8e-9 in f32 and 5.8e-18 in f64.
template <class X>
NESTGRAD_SHARED_FN X exp2_slope(X r) {
  if constexpr (kSingle<X>)
    return polynomial(r, 0x1.62e43p-1, 0x1.ebfbd8p-3, 0x1.c6af7p-5, 0x1.3b308cp-7, 0x1.5f0f82p-10,
                      0x1.3fbc78p-13);
  else
    return polynomial(r, 0x1.62e42fefa39efp-1, 0x1.ebfbdff82c5a6p-3, 0x1.c6b08d704a123p-5,
                      0x1.3b2ab6fb9fcedp-7, 0x1.5d87fe78a0b72p-10, 0x1.4309130faa988p-13,
                      0x1.ffcbfc5be5f5ep-17, 0x1.62bfc58ea7535p-20, 0x1.b525384e68c05p-24,
                      0x1.e61ee36200b31p-28, 0x1.e9546db5e8d7p-32);
}

// x / 2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) = x / (1 + 2^-(x s)) with s = c1 + c3 x^2. The exponent is
// up to 160 (1100 in f64) and its absolute error is the relative error of the result, so what rounding takes
// from s is added again. The first piece of c1 has so few bits that its difference to s, rounded, is exact.
template <class X>
NESTGRAD_SHARED_FN X gelu_tanh(X x) {
  const X c1 = X(kSingle<X> ? 0x1.26aecp1 : 0x1.26aec21bce78p1);
  const X c1_low = X(kSingle<X> ? 0x1.0de73ap-22 : -0x1.35a25af4c979dp-46);
  const X c3 = X(kSingle<X> ? 0x1.a5a7dp-4 : 0x1.a5a7cf7572a98p-4);
  const X c3_low = X(kSingle<X> ? -0x1.151aaep-29 : -0x1.b91c940e4cfcfp-58);
  const X bounded = at_least(x, X(kSingle<X> ? -11 : -22));  // below, the result rounds to 0
  const X v = at_most(bounded, X(kSingle<X> ? 6 : 8));       // above, to x
  const X square = v * v, square_low = fma(v, v, -square);
  const X s = fma(c3, square, c1);
  const X s_low = fma(c3, square, c1 - s) + fma(c3, square_low, fma(c3_low, square, c1_low));
  const Whole<X> n = nearest(-v, s);
  const X r = fma(-v, s_low, fma(-v, s, -n.value));
  return over_one_plus(bounded, n, exp2_slope(r), r);
}

}  // namespace m

}  // namespace nestgrad::inline NESTGRAD_ISA
