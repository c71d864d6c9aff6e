// a^b = e^(b log a), with log a and the product in two pieces.
#pragma once

#include "ops/numerics/logarithm.h"

namespace nestgrad::inline NESTGRAD_ISA {

namespace m {

// log(1 + f) = 2 artanh(s) for s = f / (2 + f): 2 s + s z R(z) with z = s^2 and R(z) = 2/3 + 2/5 z + 2/7 z^2
// + ... The first terms of R are in two pieces, the rest is a polynomial (fpminimax).
template <class X>
NESTGRAD_SHARED_FN Two<X> artanh_series(Two<X> z) {
  if constexpr (kSingle<X>) {
    const X q = polynomial(z.high, 0x1.99999ap-2, 0x1.249192p-2, 0x1.c7cc6cp-3, 0x1.54fd24p-3, 0x1.90197p-2);
    return sum(Two<X>{X(0x1.555556p-1), X(-0x1.555556p-26)}, product(z, Two<X>{q, X(0)}));
  } else {
    const X q = polynomial(z.high, 0x1.c71c71c71c71cp-3, 0x1.745d1745d1a17p-3, 0x1.3b13b13ac078dp-3,
                           0x1.11111155f6013p-3, 0x1.e1e1a57f3b98p-4, 0x1.af37644980e1p-4,
                           0x1.83fe161eab47ap-4, 0x1.8bc6609dbe586p-4, 0x1.23ef11db83ac8p-7);
    Two<X> r = sum(Two<X>{X(0x1.2492492492492p-2), X(0x1.2492492492492p-56)}, product(z, Two<X>{q, X(0)}));
    r = sum(Two<X>{X(0x1.999999999999ap-2), X(-0x1.999999999999ap-56)}, product(z, r));
    return sum(Two<X>{X(0x1.5555555555555p-1), X(0x1.5555555555555p-55)}, product(z, r));
  }
}

// log x of a positive finite x, with a relative error of about 2^-37 in f32 and 2^-77 in f64.
template <class X>
NESTGRAD_SHARED_FN Two<X> log_in_two(X x) {
  const auto denormal = x < X(kSmallestNormal<X>);
  const Split<X> p = split(where(denormal, x * X(kSingle<X> ? 0x1p23 : 0x1p52), x));
  const X k = p.k + where(denormal, X(-kFractionBits<X>), X(0));
  const X f = p.significand - X(1), g = p.significand + X(1), g_low = p.significand - (g - X(1));
  const X s = f / g, s_low = (fma(-s, g, f) - s * g_low) / g;
  Two<X> z = product(s, s);
  z.low = fma(X(2) * s, s_low, z.low);
  const Two<X> w = product(z, artanh_series(z)), third = product(s, w.high);
  const X low = third.low + fma(s, w.low, fma(s_low, X(2) + w.high, k * X(kLn2Low<X>)));
  const Two<X> first = fast_sum(k * X(kLn2High<X>), X(2) * s), second = fast_sum(first.high, third.high);
  return fast_sum(second.high, second.low + (first.low + low));
}

// As C's pow, but NaN where either is NaN. A negative a has a power where b is an integer.
template <class X>
NESTGRAD_SHARED_FN X pow(X a, X b) {
  const X size = abs(a), abs_b = abs(b), most = X(kLargest<X>);
  const Two<X> log = log_in_two(where((size > X(0)) & (size <= most), size, X(1)));
  // Beyond these bounds the result is 0 or infinite, whatever the second piece.
  const X exponent = b * log.high;
  const X high = at_most(at_least(exponent, X(-kMostNegative<X>)), X(kMostPositive<X>));
  const X low = where(high == exponent, fma(b, log.low, fma(b, log.high, -high)), X(0));
  X result = exp(reduced(high, low));

  // 0 and infinity: the limits, of which only the direction of each operand counts.
  const auto upwards = ((size > X(1)) & (b > X(0))) | ((size < X(1)) & (b < X(0)));
  const auto downwards = ((size < X(1)) & (b > X(0))) | ((size > X(1)) & (b < X(0)));
  const X limit = where(upwards, infinity<X>(), where(downwards, X(0), X(1)));
  result = where((size == X(0)) | (size > most) | (abs_b > most), limit, result);

  // Numbers from 2^fraction bits on are integers; those below lose their fraction when that is added.
  const X whole = X(kSingle<X> ? 0x1p23 : 0x1p52);
  const auto is_integer = [&](X v) {
    const X v_size = abs(v);
    return (v_size >= whole) | ((v_size + whole) - whole == v_size);
  };
  const auto integer = is_integer(b), half_integer = is_integer(X(0.5) * b);
  const IntOf<X> sign = bits(a) & sign_bit<X>();
  result = Number<X>::of_bits(bits(result) | where(integer & !half_integer, sign, sign - sign));
  result = where((a < X(0)) & (a >= -most) & (abs_b <= most) & !integer, not_a_number<X>(), result);
  return where((a == a) & (b == b), result, a + b);
}

}  // namespace m

}  // namespace nestgrad::inline NESTGRAD_ISA
