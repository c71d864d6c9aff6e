#include "engine/random.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <string_view>
#include <utility>

namespace nestgrad {
namespace {

// The largest sqrt(-2 log u) is that of u = 2^-53: 8.5717.
constexpr double kFurthest = 8.58;

using Words = std::array<std::uint32_t, 4>;

constexpr std::uint32_t low(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
constexpr std::uint32_t high(std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); }

// The blocks of one seed and stream.
struct Blocks {
  std::uint64_t seed, stream;
  Words operator[](std::uint64_t b) const {
    return Philox4x32::block({low(b), high(b), low(stream), high(stream)}, {low(seed), high(seed)});
  }
};

void require_float(const Spec& spec, std::string_view function) {
  if (is_float(spec.dtype)) return;
  throw DTypeError(fmt::format("[{}] cannot fill {}; use f32 or f64, or random_below for integers", function,
                               to_string(spec)));
}

// Fills out[2b] and out[2b+1] with the pair that pair_of makes of block b.
template <class T, class PairOf>
void fill_in_pairs(std::span<T> out, const Blocks& blocks, PairOf pair_of) {
  for (std::size_t i = 0; i < out.size(); i += 2) {
    const std::pair<T, T> pair = pair_of(blocks[i / 2]);
    out[i] = pair.first;
    if (i + 1 < out.size()) out[i + 1] = pair.second;
  }
}

float unit(std::uint32_t w0, std::uint32_t, float) { return unit_f32(w0); }
double unit(std::uint32_t w0, std::uint32_t w1, double) { return unit_f64(w0, w1); }

}  // namespace

Array random_uniform(Spec spec, double lo, double hi, std::uint64_t seed, std::uint64_t stream) {
  require_float(spec, "random_uniform");
  Array out(std::move(spec));
  const auto fill = [&]<class T>(std::span<T> values) {
    const T from = static_cast<T>(lo), to = static_cast<T>(hi), width = to - from;
    if (!(from <= to) || !std::isfinite(width))
      throw ValueError(
          fmt::format("[random_uniform] no numbers in [{}, {}) for {}; need lo <= hi, and hi - lo finite", lo,
                      hi, name(out.dtype())));
    const T last = from < to ? std::nextafter(to, from) : from;
    const auto between = [&](T u) {
      const T x = from + width * u;
      return x < to ? x : last;
    };
    fill_in_pairs(values, Blocks{seed, stream}, [&](const Words& w) {
      return std::pair(between(unit(w[0], w[1], T{})), between(unit(w[2], w[3], T{})));
    });
  };
  if (out.dtype() == DType::f32) fill(out.as<float>());
  else fill(out.as<double>());
  return out;
}

Array random_normal(Spec spec, double mean, double stddev, std::uint64_t seed, std::uint64_t stream) {
  require_float(spec, "random_normal");
  const double most =
      spec.dtype == DType::f32 ? std::numeric_limits<float>::max() : std::numeric_limits<double>::max();
  if (!(stddev >= 0) || !(std::abs(mean) + kFurthest * stddev <= most))
    throw ValueError(
        fmt::format("[random_normal] mean {} and stddev {} for {}; need stddev >= 0, and every number finite",
                    mean, stddev, name(spec.dtype)));
  Array out(std::move(spec));
  const auto fill = [&]<class T>(std::span<T> values) {
    fill_in_pairs(values, Blocks{seed, stream}, [&](const Words& w) {
      const double radius = stddev * std::sqrt(-2 * std::log(1 - unit_f64(w[0], w[1])));
      const double angle = 2 * std::numbers::pi * unit_f64(w[2], w[3]);
      return std::pair(static_cast<T>(mean + radius * std::cos(angle)),
                       static_cast<T>(mean + radius * std::sin(angle)));
    });
  };
  if (out.dtype() == DType::f32) fill(out.as<float>());
  else fill(out.as<double>());
  return out;
}

std::uint32_t random_below(std::uint32_t n, std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  if (n == 0) throw ValueError("[random_below] there is no integer below 0; need n >= 1");
  const std::uint32_t passed_over = (0u - n) % n;  // 2^32 mod n
  for (Words words = Blocks{seed, stream}[index];; words = Philox4x32::block(words, {low(seed), high(seed)}))
    for (const std::uint32_t word : words) {
      const std::uint64_t product = std::uint64_t{word} * n;
      if (low(product) >= passed_over) return high(product);
    }
}

}  // namespace nestgrad
