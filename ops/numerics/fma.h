// a b + c, rounded once, for processors that have no instruction for it. Correct for all operands:
// infinities, NaN, results that overflow or underflow, and the sign of zero. The rounding mode is to nearest
// even, as everywhere.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/numerics/isa.h"

#ifndef __CUDACC_RTC__  // kernels that are compiled while a program runs: a GPU has the instruction

namespace nestgrad::inline NESTGRAD_ISA {

// The product of two floats has 48 bits and is exact in double. The sum is rounded to odd in double, which
// has more than two bits above those of a float, so that the second rounding is right (Boldo and Melquiond,
// "Emulation of a FMA and Correctly Rounded Sums", IEEE Transactions on Computers 57(4), 2008).
NESTGRAD_SHARED_FN float software_fma(float a, float b, float c) {
  const double product = static_cast<double>(a) * static_cast<double>(b), addend = static_cast<double>(c);
  double sum = product + addend;
  const double back = sum - product, lost = (product - (sum - back)) + (addend - back);
  std::int64_t bits;
  std::memcpy(&bits, &sum, sizeof bits);
  if (lost != 0 && (bits & 1) == 0 && lost - lost == 0) {
    bits += (lost > 0) == (sum > 0) ? 1 : -1;  // away from zero or towards it
    std::memcpy(&sum, &bits, sizeof sum);
  }
  return static_cast<float>(sum);
}

namespace fma_detail {

__extension__ typedef unsigned __int128 Wide;

// A finite number that is not zero: (-1)^negative significand 2^exponent.
struct Parts {
  bool negative;
  int exponent;
  std::uint64_t significand;
};

inline Parts parts_of(double x) {
  std::uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const int field = static_cast<int>(bits >> 52 & 0x7ff);
  const std::uint64_t fraction = bits & ((std::uint64_t{1} << 52) - 1);
  return {(bits >> 63) != 0, (field == 0 ? 1 : field) - 1075,
          field == 0 ? fraction : fraction | std::uint64_t{1} << 52};
}

inline int length_of(Wide x) {
  const auto high = static_cast<std::uint64_t>(x >> 64), low = static_cast<std::uint64_t>(x);
  return high ? 128 - __builtin_clzll(high) : low ? 64 - __builtin_clzll(low) : 0;
}

// x 2^-by for by > 0; what is lost sets the last bit.
inline Wide shifted_down(Wide x, int by) {
  if (by >= 128) return x != 0;
  return x >> by | ((x & ((Wide{1} << by) - 1)) != 0);
}

// (-1)^negative x 2^exponent to nearest even; x != 0.
inline double rounded(bool negative, Wide x, int exponent) {
  int drop = length_of(x) - 53;  // bits below the significand
  if (exponent + drop < -1074) drop = -1074 - exponent;
  std::uint64_t kept;
  if (drop <= 0) {
    kept = static_cast<std::uint64_t>(x << -drop);
  } else if (drop > 127) {
    kept = 0;  // below half of the smallest number
  } else {
    kept = static_cast<std::uint64_t>(x >> drop);
    const Wide rest = x & ((Wide{1} << drop) - 1), half = Wide{1} << (drop - 1);
    kept += rest > half || (rest == half && (kept & 1));
  }
  exponent += drop;
  if (kept == std::uint64_t{1} << 53) kept >>= 1, ++exponent;
  std::uint64_t bits = kept;  // denormal
  if (kept >> 52)
    bits = exponent > 971 ? 0x7ffULL << 52
                          : (kept & ~(1ULL << 52)) | static_cast<std::uint64_t>(exponent + 1075) << 52;
  bits |= static_cast<std::uint64_t>(negative) << 63;
  double result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

// In integers, for all operands.
inline double fma_in_integers(double a, double b, double c) {
  if (a - a != 0 || b - b != 0 || c - c != 0)
    return c - c == 0 ? a * b : a - a != 0 || b - b != 0 ? a * b + c : c;
  if (a == 0 || b == 0 || c == 0)
    return c == 0 && a != 0 && b != 0 ? [&] {
    const Parts x = parts_of(a), y = parts_of(b);
    return rounded(x.negative != y.negative, Wide{x.significand} * y.significand, x.exponent + y.exponent);
  }() : a * b + c;
  const Parts x = parts_of(a), y = parts_of(b), z = parts_of(c);
  const bool negative = x.negative != y.negative;
  Wide product = Wide{x.significand} * y.significand, addend = z.significand;
  int exponent = x.exponent + y.exponent, other = z.exponent;
  // Both get a length of 120 bits, then the smaller one is shifted to the exponent of the larger one.
  const int up = 120 - length_of(product), up_other = 120 - length_of(addend);
  product <<= up, exponent -= up;
  addend <<= up_other, other -= up_other;
  if (exponent > other) addend = shifted_down(addend, exponent - other);
  else if (other > exponent) product = shifted_down(product, other - exponent), exponent = other;
  if (negative == z.negative) return rounded(negative, product + addend, exponent);
  if (product == addend) return 0.0;
  return product > addend ? rounded(negative, product - addend, exponent)
                          : rounded(z.negative, addend - product, exponent);
}

}  // namespace fma_detail

// Where nothing can over- or underflow: Dekker's exact product, Knuth's exact sums and one rounding to odd
// (Boldo and Melquiond, as above). Elsewhere in integers.
inline double software_fma(double a, double b, double c) {
  const auto exponent_of = [](double x) {
    std::uint64_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return static_cast<int>(bits >> 52 & 0x7ff) - 1023;
  };
  const int ea = exponent_of(a), eb = exponent_of(b), ec = exponent_of(c);
  const auto moderate = [](int e) { return e > -400 && e < 400; };
  if (!moderate(ea) || !moderate(eb) || !moderate(ec)) return fma_detail::fma_in_integers(a, b, c);
  const auto split = [](double x, double& high, double& low) {
    const double t = 134217729.0 * x;  // 2^27 + 1
    high = t - (t - x), low = x - high;
  };
  const auto two_sum = [](double x, double y, double& error) {
    const double s = x + y, back = s - x;
    error = (x - (s - back)) + (y - back);
    return s;
  };
  double ah, al, bh, bl;
  split(a, ah, al), split(b, bh, bl);
  const double u = a * b, ul = ((ah * bh - u) + ah * bl + al * bh) + al * bl;
  double tl, vl;
  const double t = two_sum(c, ul, tl), v = two_sum(u, t, vl);
  double lost, z = two_sum(tl, vl, lost);
  std::int64_t bits;
  std::memcpy(&bits, &z, sizeof bits);
  if (lost != 0 && (bits & 1) == 0) {
    bits += (lost > 0) == (z > 0) ? 1 : -1;
    std::memcpy(&z, &bits, sizeof z);
  }
  return v + z;
}

}  // namespace nestgrad::inline NESTGRAD_ISA

#endif
