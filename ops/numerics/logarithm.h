// log, log1p and softplus; the logarithm in two pieces that pow needs.
//
// x = 2^k (1 + f) with an integer k and sqrt(1/2) <= 1 + f < sqrt(2); log x = k ln 2 + log(1 + f).
#pragma once

#include "ops/numerics/exponential.h"

namespace nestgrad::inline NESTGRAD_ISA {

namespace m {

// x = 2^k significand.
template <class X>
struct Split {
  X k, significand;
  IntOf<X> k_bits;  // k at the place of the exponent
};
// x > 0, normal and finite.
template <class X>
NESTGRAD_SHARED_FN Split<X> split(X x) {
  using I = LaneInt<X>;
  const IntOf<X> root = bits(X(kSingle<X> ? 0x1.6a09e6p-1 : 0x1.6a09e667f3bcdp-1));
  const IntOf<X> above = bits(x) - root, fraction(static_cast<I>((I{1} << kFractionBits<X>)-1));
  const IntOf<X> exponent = above >> kFractionBits<X>;
  // The integer becomes a number where it stands in the lowest bits of a large one.
  const X k = Number<X>::of_bits(exponent + bits(X(kRounder<X>))) - X(kRounder<X>);
  return {k, Number<X>::of_bits((above & fraction) + root), exponent << kFractionBits<X>};
}

// k ln 2 + log(1 + f). f32: log(1 + f) = f - f^2/2 + f^3 q(f), where q has a relative error of 4.9e-9
// (fpminimax). f64: with s = f / (2 + f) it is f - f^2/2 + s (f^2/2 + s^2 q(s^2)), as in FreeBSD's e_log.c; q
// to 8e-18 (fpminimax).
template <class X>
NESTGRAD_SHARED_FN X log_of_parts(X k, X f) {
  const X square = f * f, half = X(0.5) * square;
  X rest;  // log(1 + f) - f
  if constexpr (kSingle<X>) {
    const X q = polynomial(f, 0x1.55557p-2, -0x1.000234p-2, 0x1.99944ep-3, -0x1.5466fep-3, 0x1.239ce2p-3,
                           -0x1.0e96ccp-3, 0x1.015974p-3, -0x1.2a6f78p-4);
    rest = fma(square * f, q, fma(k, X(kLn2Low<X>), -half));
  } else {
    const X s = f / (X(2) + f), z = s * s;
    const X q =
        polynomial(z, 0x1.5555555555555p-1, 0x1.9999999999d5cp-2, 0x1.249249242e82p-2, 0x1.c71c725ce80efp-3,
                   0x1.745cdb4602c86p-3, 0x1.3b216198ca57ep-3, 0x1.0f4955ce5ae2cp-3, 0x1.102a7730e52a7p-3);
    rest = fma(s, fma(z, q, half), k * X(kLn2Low<X>)) - half;
  }
  return fma(k, X(kLn2High<X>), f + rest);
}

template <class X>
NESTGRAD_SHARED_FN X log(X x) {
  const auto odd = (!(x >= X(kSmallestNormal<X>))) | (x > X(kLargest<X>));
  const bool any_odd = any(odd);  // rare
  X normal = x, more = X(0);
  if (any_odd) {
    const auto denormal = (x > X(0)) & (x < X(kSmallestNormal<X>));
    normal = where(denormal, x * X(kSingle<X> ? 0x1p23 : 0x1p52), where(odd, X(1), x));
    more = where(denormal, X(-kFractionBits<X>), X(0));
  }
  const Split<X> p = split(normal);
  X result = log_of_parts(p.k + more, p.significand - X(1));
  if (any_odd) {
    result = where(x == X(0), -infinity<X>(), result);
    result = where(x < X(0), not_a_number<X>(), result);
    result = where(x <= X(kLargest<X>), result, x);  // infinity, NaN
  }
  return result;
}

// u = 1 + x, rounded; what rounding lost is added to f. Where u = 1, that gives x.
template <class X>
NESTGRAD_SHARED_FN X log1p(X x) {
  const X u = X(1) + x, lost = where(x < X(1), x - (u - X(1)), X(1) - (u - x));
  const Split<X> p = split(at_most(at_least(u, X(kSmallestNormal<X>)), X(kLargest<X>)));
  const X lost_scaled = lost * power_of_two<X>(wrapped_difference(IntOf<X>(LaneInt<X>{0}), p.k_bits));
  const auto large = x > X(kSingle<X> ? 0x1p60 : 0x1p120);  // nothing to add; 2^-k may not be a number
  X result = log_of_parts(p.k, (p.significand - X(1)) + where(large, X(0), lost_scaled));
  result = where(abs(x) < X(kSingle<X> ? 0x1p-30 : 0x1p-60), x, result);
  result = where(x <= X(-1), where(x < X(-1), not_a_number<X>(), -infinity<X>()), result);
  return where(x <= X(kLargest<X>), result, x);  // infinity, NaN
}

// max(x, 0) + log(1 + e^-|x|). f32: log(1 + e) is a polynomial with a relative error of 5.3e-9 (fpminimax)
// for 0 <= e <= 1.
template <class X>
NESTGRAD_SHARED_FN X softplus(X x) {
  const X e = exp(reduced(at_least(-abs(x), X(-kMostNegative<X>)))), positive = where(x < X(0), X(0), x);
  if constexpr (kSingle<X>)
    return positive +
           fma(e * e,
               polynomial(e, -0x1.ffffd2p-2, 0x1.554ddap-2, -0x1.ff2556p-3, 0x1.935568p-3, -0x1.3a6736p-3,
                          0x1.b53c48p-4, -0x1.d7efa8p-5, 0x1.4a9226p-6, -0x1.b22adep-9),
               e);
  else return positive + log1p(e);
}

}  // namespace m

}  // namespace nestgrad::inline NESTGRAD_ISA
