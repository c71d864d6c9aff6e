#include "examples/common/sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/core/random.h"
#include "ops/numerics/functions.h"

namespace nestgrad {

namespace {

constexpr std::uint64_t kSampleStream = 0x73616d706c65ULL;  // "sample"

// Index drawn from softmax(logits / temperature); u uniform in [0, 1).
std::int32_t draw(const std::vector<double>& logits, double temperature, double u) {
  const auto best = std::ranges::max_element(logits);
  if (!std::isfinite(*best))
    throw ValueError("[sample] the model's output is not finite; the checkpoint is of a run that diverged");
  if (temperature == 0) return static_cast<std::int32_t>(best - logits.begin());
  std::vector<double> weights;
  double total = 0;
  for (double l : logits) total += weights.emplace_back(m::exp((l - *best) / temperature));
  double left = u * total;
  for (std::size_t i = 0; i < weights.size(); ++i)
    if ((left -= weights[i]) < 0) return static_cast<std::int32_t>(i);
  return static_cast<std::int32_t>(best - logits.begin());  // rounding ate the last sliver
}

}  // namespace

std::string sample_text(const LanguageModelConfig& config, const StateDict& params, const std::string& prompt,
                        std::int64_t bytes, double temperature, std::uint64_t seed,
                        const std::function<void(char)>& on_byte) {
  if (prompt.empty())
    throw ConfigError("[sample] the prompt must not be empty: the model needs a first byte to read");
  if (!(temperature >= 0))
    throw ConfigError(fmt::format("[sample] the temperature must not be negative, it is {}", temperature));
  if (config.vocab_size != 256)
    throw ConfigError(
        fmt::format("[sample] text is bytes: vocab_size must be 256, it is {}", config.vocab_size));
  Decoder decoder(config, params, DType::f32, 1, static_cast<std::int64_t>(prompt.size()) + bytes);
  const Array uniforms = random_uniform({DType::f64, {bytes}}, 0, 1, seed, kSampleStream);
  Array token(DType::i32, {1}), logits;
  const auto read = [&](char c) {
    token.as<std::int32_t>()[0] = static_cast<unsigned char>(c);
    logits = decoder.step(token);
  };
  for (char c : prompt) read(c);
  std::string out;
  for (std::int64_t i = 0; i < bytes; ++i) {
    const char c = static_cast<char>(draw(logits.to_vector(), temperature, uniforms.at(i)));
    out += c;
    if (on_byte) on_byte(c);
    if (i + 1 < bytes) read(c);
  }
  return out;
}

}  // namespace nestgrad
