// erf and gelu.
//
// Q(t) = Phi(-t) e^(t^2/2), where Phi is the normal distribution, falls slowly and smoothly from 1/2 at 0 to
// about 0.4/t; in the variable 1/(t + 4) it is close to a polynomial. So Phi(-t) = Q(t) e^(-t^2/2) keeps its
// relative accuracy however small it is.
#pragma once

#include "ops/numerics/exponential.h"

namespace nestgrad::inline NESTGRAD_ISA {

namespace m {

// slope v + first in two pieces. `first` is in two pieces too, where the first one has so few bits that its
// difference to the sum, which is larger or close to it, is exact.
template <class X>
NESTGRAD_SHARED_FN Two<X> last_step(X slope, X v, X first, X first_low) {
  const X high = fma(slope, v, first);
  return {high, fma(slope, v, first - high) + first_low};
}

// Q as a polynomial of v = 8/(t + 4) - 3/4 (f64: - 3/16), with a relative error of 4.4e-9 in f32 and 1e-18 in
// f64 (fpminimax).
template <class X>
NESTGRAD_SHARED_FN Two<X> tail_polynomial(X v) {
  Two<X> slope, q;
  if constexpr (kSingle<X>) {
    const X rest = polynomial(v, 0x1.4b50ccp-4, 0x1.782394p-5, 0x1.58612p-6, 0x1.cf333ap-8, 0x1.4cf96p-10,
                              -0x1.b5c2d6p-13, -0x1.05b6d2p-12, 0x1.4723cp-16, 0x1.7f9962p-17);
    slope = last_step(rest, v, X(0x1.eb0dp-4), X(0x1.5p-21));
    q = last_step(slope.high, v, X(0x1.dfdcp-5), X(0x1.675e52p-22));
  } else {
    const X rest = polynomial(
        v, 0x1.0c0c9b4c77defp-5, 0x1.0ac0a37183f65p-6, 0x1.e01b3916aea1dp-8, 0x1.7a9dc3f96b4f2p-9,
        0x1.ebc9d65f96713p-11, 0x1.bafaafb81a23p-13, 0x1.57656c07bd1e6p-18, -0x1.7cdf3fabd79dbp-16,
        -0x1.703fff7a4a8dfp-17, -0x1.bd8565dd52262p-20, 0x1.bbe31222e6936p-20, 0x1.859e77c04c707p-27,
        0x1.37d83657a9173p-20, -0x1.4a8e11dd89e38p-20, 0x1.49a1f1aacd2fp-21, -0x1.15af9697d74edp-26,
        -0x1.15448cc594e6ap-21, 0x1.87690aee6a17ap-21, -0x1.303d9acbd5cb8p-21, 0x1.3613625e36383p-22,
        -0x1.b3975755cc91dp-24, 0x1.a6fd78db561e8p-26, -0x1.11bc8eaef5514p-28, 0x1.abd7559357d79p-32,
        -0x1.32f98634d8621p-36);
    slope = last_step(rest, v, X(0x1.f06a2629p-5), X(0x1.47df752f687dfp-39));
    q = last_step(slope.high, v, X(0x1.51db7653p-7), X(0x1.8da8034240615p-40));
  }
  return {q.high, fma(slope.low, v, q.low)};
}

// t Q(t) for 0 <= t <= 14.5 (38.66 in f64). What rounding takes from 1/(t + 4) would weigh more than other
// rounding errors: it is measured and multiplied by the derivative, where dQ/dt = t Q - 1/sqrt(2 pi).
template <class X>
NESTGRAD_SHARED_FN Two<X> normal_tail(X t) {
  const X d = t + X(4), d_low = t - (d - X(4)), y = X(1) / d;
  const Two<X> q = tail_polynomial(fma(X(8), y, X(kSingle<X> ? -0.75 : -0.1875)));  // an exact difference
  const X lost = fma(-y, d_low, fma(-y, d, X(1)));                                  // 1 - y (t + 4)
  const X low = fma(fma(-t, q.high, X(0x1.9884533d43651p-2)) * d, lost, q.low);
  const Two<X> p = product(t, q.high);
  return {p.high, fma(t, low, p.low)};
}

// -t^2 / divisor, reduced; what rounding takes from t^2 is added again.
template <class X>
NESTGRAD_SHARED_FN Reduced<X> gaussian_exponent(X t, int divisor) {
  const X negative = t * X(-1.0 / divisor), square = negative * t;
  return reduced(square, fma(negative, t, -square));
}

// x Phi(x) = max(x, 0) - |x| Phi(-|x|).
template <class X>
NESTGRAD_SHARED_FN X gelu(X x) {
  const X t = at_most(abs(x), X(kSingle<X> ? 14.5 : 38.66));
  const Reduced<X> e = gaussian_exponent(t, 2);
  const Two<X> tail = normal_tail(t);
  const X p = exp_slope(e.rest) * e.rest;
  const X rest = scaled(tail.high + fma(p, tail.high, fma(p, tail.low, tail.low)), e.n);
  return where(x >= X(0), x - rest, -rest);
}

// Up to 1: x + x e(x^2), where e has an absolute error of 1.3e-9 in f32 and 1.6e-17 in f64 (fpminimax).
// Above: 1 - 2 Phi(-sqrt(2) |x|).
template <class X>
NESTGRAD_SHARED_FN X erf(X x) {
  const X size = at_most(abs(x), X(kSingle<X> ? 4.5 : 6.5)), square = size * size;
  X p;
  if constexpr (kSingle<X>)
    p = polynomial(square, 0x1.06eba8p-3, -0x1.81274p-2, 0x1.ce2d52p-4, -0x1.b7fec4p-6, 0x1.542fecp-8,
                   -0x1.a5197ap-11, 0x1.4c5cb4p-14);
  else
    p = polynomial(square, 0x1.06eba8214db68p-3, -0x1.812746b0379b5p-2, 0x1.ce2f21a040b02p-4,
                   -0x1.b82ce311f7069p-6, 0x1.565bccf908894p-8, -0x1.c02db03ff6859p-11, 0x1.f9a2bb4bba0e4p-14,
                   -0x1.f4ca5bb2856d7p-17, 0x1.b9807f233887fp-20, -0x1.5c0bc3130e26fp-23,
                   0x1.d73d744d56d18p-27, -0x1.ac1a4196e3b8fp-31);
  const X near = fma(size, p, size);
  const X t = X(0x1.6a09e667f3bcdp0) * at_least(size, X(1));
  const Two<X> tail = normal_tail(t);
  const X far = fma(exp(gaussian_exponent(size, 1)), X(-2) * ((tail.high + tail.low) / t), X(1));
  return with_sign_of(x, where(size < X(1), near, far));
}

}  // namespace m

}  // namespace nestgrad::inline NESTGRAD_ISA
