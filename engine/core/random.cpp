#include "engine/core/random.h"

#include <fmt/format.h>

#include <cmath>
#include <string_view>
#include <utility>

#include "engine/core/convert.h"
#include "engine/core/device_memory.h"

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

Array filled(Spec spec, const RandomFill& fill, const Device& device) {
  Array out(std::move(spec), device);
  if (DeviceMemory* memory = device.device_memory()) {
    memory->random(fill, out.size(), out.data());
    return out;
  }
  with_pairs(fill, [&]<class T, class Pair>(T, const Pair& pair) {
    const std::int64_t n = out.size();
    T* const values = out.as<T>().data();
    for (std::int64_t b = 0; 2 * b < n; ++b) fill_pair(values, n, b, fill.seed, fill.stream, pair);
  });
  return out;
}

}  // namespace

Array random_uniform(Spec spec, double lo, double hi, std::uint64_t seed, std::uint64_t stream,
                     const Device& device) {
  require_float(spec, "random_uniform");
  const bool in_order = dispatch(spec.dtype, [&]<class T>(T) {
    const T from = static_cast<T>(lo), to = static_cast<T>(hi);
    return from <= to && std::isfinite(static_cast<double>(static_cast<T>(to - from)));
  });
  if (!in_order)
    throw ValueError(
        fmt::format("[random_uniform] no numbers in [{}, {}) for {}; need lo <= hi, and hi - lo finite", lo,
                    hi, name(spec.dtype)));
  const RandomFill fill{RandomFill::Kind::uniform, spec.dtype, lo, hi, seed, stream};
  return filled(std::move(spec), fill, device);
}

Array random_normal(Spec spec, double mean, double stddev, std::uint64_t seed, std::uint64_t stream,
                    const Device& device) {
  require_float(spec, "random_normal");
  if (!(stddev >= 0) || !(std::abs(mean) + kFurthest * stddev <= largest_finite(spec.dtype)))
    throw ValueError(
        fmt::format("[random_normal] mean {} and stddev {} for {}; need stddev >= 0, and every number finite",
                    mean, stddev, name(spec.dtype)));
  const RandomFill fill{RandomFill::Kind::normal, spec.dtype, mean, stddev, seed, stream};
  return filled(std::move(spec), fill, device);
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
