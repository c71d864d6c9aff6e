// sin and cos.
//
// x = n pi/2 + r with an integer n and |r| <= pi/4. Up to some size of x by Cody and Waite: pi/2 is in three
// pieces and fma() rounds each step once; the first one is exact. Beyond it by Payne and Hanek ("Radian
// reduction for trigonometric functions", SIGNUM Newsletter 18, 1983): x is an integer m times 2^e, and of m
// 2^e 2/pi only the bits of 2/pi count that do not make multiples of 4.
#pragma once

#include "ops/numerics/parts.h"

namespace nestgrad::inline NESTGRAD_ISA {

namespace m {

// Not worth a place in each kernel's loop.
#ifdef __CUDACC__
#define NESTGRAD_COLD_FN __host__ __device__ __noinline__
#else
#define NESTGRAD_COLD_FN __attribute__((noinline, cold))
#endif

namespace quarter_turns {

__extension__ typedef unsigned __int128 Wide;

// m 2^e 2/pi modulo 4 in units of 2^-126, for m < 2^53 and -62 <= e <= 971. 192 bits of 2/pi are used, those
// that give the result's integer bits and what is below; the error is below 2^-124.
template <class T>
NESTGRAD_SHARED_FN Wide modulo_4(std::uint64_t m, int e) {
  // 2/pi after 64 zeros.
  const std::uint64_t two_over_pi[] = {0,
                                       0xa2f9836e4e441529,
                                       0xfc2757d1f534ddc0,
                                       0xdb6295993c439041,
                                       0xfe5163abdebbc561,
                                       0xb7246e3a424dd2e0,
                                       0x06492eea09d1921c,
                                       0xfe1deb1cb129a73e,
                                       0xe88235f52ebb4484,
                                       0xe99c7026b45f7e41,
                                       0x3991d639835339f4,
                                       0x9c845f8bbdf9283b,
                                       0x1ff897ffde05980f,
                                       0xef2f118b5a0a6d1f,
                                       0x6d367ecf27cb09b7,
                                       0x4f463f669e5fea2d,
                                       0x7527bac7ebe5f17b,
                                       0x3d0739f78a5292ea,
                                       0x6bfb5fb11f8d5d08,
                                       0x56033046fc7b6bab,
                                       0xf0cfbc209af4361d};
  const int first = e + 62, word = first / 64, shift = first % 64;  // the bit of weight 2^(1 - e)
  std::uint64_t window[3];
  for (int i = 0; i < 3; ++i)
    window[i] = two_over_pi[word + i] << shift | two_over_pi[word + i + 1] >> 1 >> (63 - shift);
  const Wide low = static_cast<Wide>(m) * window[2], middle = static_cast<Wide>(m) * window[1];
  return (static_cast<Wide>(m * window[0]) << 64) + middle + (low >> 64);
}
// Of a finite number.
template <class T>
NESTGRAD_SHARED_FN Wide of(T x) {
  const auto all = static_cast<std::uint64_t>(bits(abs(x)));
  const int field = static_cast<int>(all >> kFractionBits<T>);
  const std::uint64_t one = std::uint64_t{1} << kFractionBits<T>;
  return modulo_4<T>((all & (one - 1)) | one, field - kBias<T> - kFractionBits<T>);
}
// The nearest integer to |x| 2/pi, modulo 4, of a large number.
template <class T>
NESTGRAD_COLD_FN T integer(T x) {
  return static_cast<T>(static_cast<int>((of(x) + (static_cast<Wide>(1) << 125)) >> 126) & 3);
}
// What is left: |x| 2/pi less its nearest integer, times pi/2.
template <class T>
NESTGRAD_COLD_FN T rest(T x) {
  Wide left = of(x) << 2;  // in units of 2^-128, a signed number
  const bool negative = (left >> 127) != 0;
  if (negative) left = -left;
  int zeros = 0;
  for (; left >> 127 == 0 && zeros < 120; ++zeros) left <<= 1;
  constexpr int width = kFractionBits<T> + 1;
  using I = LaneInt<T>;
  // Two pieces of `width` bits: left 2^-(128 + zeros) = (high + low 2^-width) 2^-(width + zeros).
  const T high = static_cast<T>(static_cast<I>(left >> (128 - width)));
  const T low = static_cast<T>(static_cast<I>(left << width >> (128 - width)));
  const T unit = Number<T>::of_bits(static_cast<I>(kBias<T> - width) << kFractionBits<T>);
  const T half_pi = T(kSingle<T> ? 0x1.921fb6p0 : 0x1.921fb54442d18p0);
  const T half_pi_low = T(kSingle<T> ? -0x1.777a5cp-25 : 0x1.1a62633145c07p-54);
  const T a = high * unit, b = low * (unit * unit);
  const T r = fma(a, half_pi, fma(a, half_pi_low, b * half_pi));
  const T scaled_back = r * Number<T>::of_bits(static_cast<I>(kBias<T> - zeros) << kFractionBits<T>);
  return negative ? -scaled_back : scaled_back;
}

}  // namespace quarter_turns

// sin r = r + r^3 s(r^2), cos r = 1 - r^2/2 + r^4 c(r^2); fpminimax for |r| <= 0.8, relative error of
// sin 4.6e-9 (f32) and 4.8e-18 (f64), absolute error of cos 1.3e-10 and 6.6e-20.
template <class X>
NESTGRAD_SHARED_FN X sin_of_rest(X r, X square) {
  X s;
  if constexpr (kSingle<X>) s = polynomial(square, -0x1.555544p-3, 0x1.1106aep-7, -0x1.990f92p-13);
  else
    s = polynomial(square, -0x1.5555555555545p-3, 0x1.111111110f281p-7, -0x1.a01a019b51f18p-13,
                   0x1.71de34d0fd284p-19, -0x1.ae5de34ff4019p-26, 0x1.5d6cf65fe2356p-33);
  return fma(square * r, s, r);
}
template <class X>
NESTGRAD_SHARED_FN X cos_of_rest(X square) {
  X c;
  if constexpr (kSingle<X>) c = polynomial(square, -0.5, 0x1.55554ap-5, -0x1.6c0c08p-10, 0x1.99d83cp-16);
  else
    c = polynomial(square, -0.5, 0x1.5555555555549p-5, -0x1.6c16c16c14bacp-10, 0x1.a01a019c1e3dp-16,
                   -0x1.27e4f79df183ap-22, 0x1.1ee9a19be6f8dp-29, -0x1.8f87ba4c5c318p-37);
  return fma(square, c, X(1));
}

// |x| = n pi/2 + rest.
template <class X>
struct Turned {
  IntOf<X> n;  // modulo 4
  X rest;
};
template <class X>
NESTGRAD_SHARED_FN Turned<X> turned(X size) {
  using T = typename Number<X>::Lane;
  const X limit = X(kSingle<X> ? 0x1p16 : 0x1p21);
  const Whole<X> n = nearest(size, X(0x1.45f306dc9c883p-1));
  X r = fma(n.value, X(kSingle<X> ? -0x1.921fb6p0 : -0x1.921fb54442d18p0), size);
  r = fma(n.value, X(kSingle<X> ? 0x1.777a5cp-25 : -0x1.1a62633145c07p-54), r);
  r = fma(n.value, X(kSingle<X> ? 0x1.ee59dap-50 : 0x1.f1976b7ed8fbcp-110), r);
  if (!any(!(size <= limit))) return {n.low_bits, r};
  const auto is_large = [](T v) { return v > T(kSingle<T> ? 0x1p16 : 0x1p21) && v <= T(kLargest<T>); };
  // Infinity and NaN give NaN, which is v - v.
  const X large = each_lane(size, [&](T v) { return is_large(v) ? quarter_turns::rest(v) : v - v; });
  const X integer = each_lane(size, [&](T v) { return is_large(v) ? quarter_turns::integer(v) : T(0); });
  return {bits(where(size <= limit, n.value, integer) + X(kRounder<X>)), where(size <= limit, r, large)};
}

// The sine of (n + more) pi/2 + rest.
template <class X>
NESTGRAD_SHARED_FN X sin_of_turned(Turned<X> t, int more) {
  using I = LaneInt<X>;
  constexpr int to_sign = 8 * static_cast<int>(sizeof(I)) - 2;  // from the second bit to that of the sign
  const IntOf<X> n = wrapped_sum(t.n, IntOf<X>(static_cast<I>(more)));
  const X square = t.rest * t.rest;
  const IntOf<X> even = bits(sin_of_rest(t.rest, square)), odd = bits(cos_of_rest(square));
  const IntOf<X> is_odd = IntOf<X>(I{0}) - (n & IntOf<X>(I{1}));  // all bits or none
  return Number<X>::of_bits((even ^ ((even ^ odd) & is_odd)) ^ ((n << to_sign) & sign_bit<X>()));
}

template <class X>
NESTGRAD_SHARED_FN X sin(X x) {
  const X size = sin_of_turned(turned(abs(x)), 0);
  return Number<X>::of_bits(bits(size) ^ (bits(x) & sign_bit<X>()));
}

template <class X>
NESTGRAD_SHARED_FN X cos(X x) {
  return sin_of_turned(turned(abs(x)), 1);
}

}  // namespace m

}  // namespace nestgrad::inline NESTGRAD_ISA
