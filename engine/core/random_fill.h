// What a seed and a stream make of an array, in formulas for the CPU and for CUDA kernels: additions,
// products, quotients and square roots, each rounded as IEEE 754 says, and nothing else. So the bits are the
// same on every device and with every C library. Compiled without contraction of products and sums.
#pragma once

#include <cmath>
#include <cstring>

#include "engine/core/random.h"

namespace nestgrad {

// The natural logarithm of x, which is normal and positive, to about two units in the last place:
// x = 2^k m, log m = 2 atanh((m - 1) / (m + 1)).
NESTGRAD_HOST_DEVICE inline double log_of(double x) {
  std::uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  int k = static_cast<int>(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffULL) | 0x3ff0000000000000ULL;
  double m;
  std::memcpy(&m, &bits, sizeof m);
  if (m > 1.4142135623730951) m *= 0.5, ++k;
  const double s = (m - 1) / (m + 1), z = s * s;  // |s| <= 0.1716
  double p = 1.0 / 23;
  for (int n = 10; n >= 0; --n) p = 1.0 / (2 * n + 1) + z * p;
  // log 2 in two parts, of which the first has 32 bits, so that k times it is exact.
  return k * 6.93147180369123816490e-01 + (2 * s * p + k * 1.90821492927058770002e-10);
}

// cos and sin of 2 pi v, 0 <= v < 1, likewise: the angle from the nearest quarter turn, then Taylor's series.
NESTGRAD_HOST_DEVICE inline void cos_sin_of_turns(double v, double& cosine, double& sine) {
  const double quarters = std::floor(4 * v + 0.5);
  const double t = 6.283185307179586 * (v - 0.25 * quarters), z = t * t;  // |t| <= pi / 4
  double s = 1, c = 1;
  for (int n = 9; n >= 1; --n) {
    s = 1 - z * s * (1.0 / (2 * n * (2 * n + 1)));
    c = 1 - z * c * (1.0 / (2 * n * (2 * n - 1)));
  }
  s *= t;
  const int quadrant = static_cast<int>(quarters) & 3;
  cosine = quadrant == 0 ? c : quadrant == 1 ? -s : quadrant == 2 ? -c : s;
  sine = quadrant == 0 ? s : quadrant == 1 ? c : quadrant == 2 ? -s : -c;
}

NESTGRAD_HOST_DEVICE inline float unit(const std::uint32_t* words, float) { return unit_f32(words[0]); }
NESTGRAD_HOST_DEVICE inline double unit(const std::uint32_t* words, double) {
  return unit_f64(words[0], words[1]);
}

// What a block of words gives: two elements of an array.
template <class T>
struct UniformPair {
  T from, to, width, last;
  NESTGRAD_HOST_DEVICE void operator()(const std::uint32_t words[4], T out[2]) const {
    for (int i = 0; i < 2; ++i) {
      const T x = from + width * unit(words + 2 * i, T{});
      out[i] = x < to ? x : last;
    }
  }
};

template <class T>
struct NormalPair {
  double mean, stddev;
  NESTGRAD_HOST_DEVICE void operator()(const std::uint32_t words[4], T out[2]) const {
    const double radius = stddev * std::sqrt(-2 * log_of(1 - unit_f64(words[0], words[1])));
    double cosine, sine;
    cos_sin_of_turns(unit_f64(words[2], words[3]), cosine, sine);
    out[0] = static_cast<T>(mean + radius * cosine);
    out[1] = static_cast<T>(mean + radius * sine);
  }
};

// Writes elements 2 b and 2 b + 1 of n.
template <class T, class Pair>
NESTGRAD_HOST_DEVICE void fill_pair(T* out, std::int64_t n, std::int64_t b, std::uint64_t seed,
                                    std::uint64_t stream, const Pair& pair) {
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
  const auto block = static_cast<std::uint64_t>(b);
  const std::uint32_t counter[4] = {low(block), high(block), low(stream), high(stream)},
                      key[2] = {low(seed), high(seed)};
  std::uint32_t words[4];
  philox4x32(counter, key, words);
  T both[2];
  pair(words, both);
  out[2 * b] = both[0];
  if (2 * b + 1 < n) out[2 * b + 1] = both[1];
}

// An array to be filled, as a backend is told.
struct RandomFill {
  enum class Kind : std::uint8_t { uniform, normal } kind;
  DType dtype;
  double first, second;  // bounds; mean and standard deviation
  std::uint64_t seed, stream;
};

// Calls fn(T{}, pair) with the element type and what makes the pairs.
template <class Fn>
void with_pairs(const RandomFill& fill, Fn fn) {
  const auto of = [&]<class T>(T) {
    if (fill.kind == RandomFill::Kind::normal) return fn(T{}, NormalPair<T>{fill.first, fill.second});
    const T from = static_cast<T>(fill.first), to = static_cast<T>(fill.second);
    fn(T{}, UniformPair<T>{from, to, to - from, from < to ? std::nextafter(to, from) : from});
  };
  if (fill.dtype == DType::f32) of(float{});
  else of(double{});
}

}  // namespace nestgrad
