// Counter-based random numbers: element i is a pure function of (seed, stream, i), so that an array holds the
// same numbers, bit for bit, whatever its size, whichever thread or device fills it, and after a resume. An
// array for a GPU is filled there.
//
// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
// From (seed, stream, i) to bits: block b is philox(counter, key) with
//   counter = {b mod 2^32, b / 2^32, stream mod 2^32, stream / 2^32},  key = {seed mod 2^32, seed / 2^32}
// and gives four words w0..w3. Every function below draws
// from the same words: use a stream for one purpose only.
#pragma once

#include <array>
#include <cstdint>

#include "engine/core/array.h"
#include "engine/core/host_device.h"

namespace nestgrad {

// Plain functions on words, for the CPU and for CUDA kernels.

// out = philox4x32-10(counter, key). `out` may be `counter`.
NESTGRAD_HOST_DEVICE inline void philox4x32(const std::uint32_t counter[4], const std::uint32_t key[2],
                                            std::uint32_t out[4]) {
  std::uint32_t x0 = counter[0], x1 = counter[1], x2 = counter[2], x3 = counter[3], k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * x0, b = std::uint64_t{0xCD9E8D57} * x2;
    x0 = static_cast<std::uint32_t>(b >> 32) ^ x1 ^ k0;
    x1 = static_cast<std::uint32_t>(b);
    x2 = static_cast<std::uint32_t>(a >> 32) ^ x3 ^ k1;
    x3 = static_cast<std::uint32_t>(a);
    k0 += 0x9E3779B9;  // the golden ratio
    k1 += 0xBB67AE85;  // sqrt(3) - 1
  }
  out[0] = x0, out[1] = x1, out[2] = x2, out[3] = x3;
}

// Two words to [0,1): the upper 27 bits of w0 followed by the upper 26 of w1, over 2^53.
NESTGRAD_HOST_DEVICE inline double unit_f64(std::uint32_t w0, std::uint32_t w1) {
  return (static_cast<double>(w0 >> 5) * 67108864.0 + static_cast<double>(w1 >> 6)) *
         (1.0 / 9007199254740992.0);
}

// One word to [0,1): its upper 24 bits over 2^24. This is unit_f64(w, anything) cut to 24 bits.
NESTGRAD_HOST_DEVICE inline float unit_f32(std::uint32_t w) {
  return static_cast<float>(w >> 8) * (1.0f / 16777216.0f);
}

struct Philox4x32 {
  static std::array<std::uint32_t, 4> block(const std::array<std::uint32_t, 4>& counter,
                                            const std::array<std::uint32_t, 2>& key) {
    std::array<std::uint32_t, 4> out{};
    philox4x32(counter.data(), key.data(), out.data());
    return out;
  }
};

// Uniform in [lo, hi), of any shape; hi == lo gives lo. Element i takes words p = 2 (i mod 2) and p + 1 of
// block i / 2: x = lo + (hi - lo) u in the arithmetic of the dtype, u = unit_f64(w[p], w[p+1]) or
// unit_f32(w[p]), and the number just below hi where rounding reaches hi. lo and hi are rounded to the dtype
// first. With lo = 0 and hi = 1 the f32 array is the f64 array of the same seed cut to 24 bits.
//
// Throws DTypeError for i32, ValueError unless lo <= hi and hi - lo is finite in the dtype.
Array random_uniform(Spec spec, double lo, double hi, std::uint64_t seed, std::uint64_t stream,
                     const Device& device = {});

// Normal, of any shape. Elements 2b and 2b+1 are the Box-Muller pair of block b, computed in f64: with
// u = 1 - unit_f64(w0, w1) in (0,1], v = unit_f64(w2, w3) and r = stddev sqrt(-2 log u), they are
// mean + r cos(2 pi v) and mean + r sin(2 pi v), rounded once to the dtype: the f32 array is the f64 array of
// the same seed, rounded. No number is further than 8.58 stddev from the mean. log, cos and sin are our own
// (engine/core/random_fill.h), to about two units in the last place.
//
// Throws DTypeError for i32, ValueError unless stddev >= 0 and |mean| + 8.58 stddev is finite in the dtype.
Array random_normal(Spec spec, double mean, double stddev, std::uint64_t seed, std::uint64_t stream,
                    const Device& device = {});

// An integer from 0 to n-1, each with exactly the same probability. A word w gives the upper half of the
// 64-bit product w n; it is passed over if the lower half is below 2^32 mod n (Lemire, "Fast Random Integer
// Generation in an Interval", 2019). Words come from block `index` in order; after four that are passed over,
// philox of those four (as the counter, under the same key) gives the next four.
//
// Throws ValueError for n = 0.
std::uint32_t random_below(std::uint32_t n, std::uint64_t seed, std::uint64_t stream, std::uint64_t index);

}  // namespace nestgrad
