#include "models/sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/core/random.h"
#include "ops/numerics/functions.h"

namespace nestgrad {

namespace {

constexpr std::int64_t kMostBytes = std::int64_t{1} << 40;
constexpr std::uint64_t kSampleStream = 0x73616d706c65ULL;  // "sample"

// Index drawn from softmax(logits / temperature); u uniform in [0, 1).
std::int32_t draw(const std::vector<double>& logits, double temperature, double u) {
  const auto best = std::ranges::max_element(logits);
  if (!std::isfinite(*best) || std::ranges::any_of(logits, [](double l) { return std::isnan(l); }))
    throw ValueError(
        "[sample] the model's output is not finite: the checkpoint is of a run that diverged, or what its layers learn from "
        "this prompt does; give a shorter one, or train with sequences as long");
  if (temperature == 0) return static_cast<std::int32_t>(best - logits.begin());
  std::vector<double> weights;
  double total = 0;
  for (double l : logits) total += weights.emplace_back(m::exp((l - *best) / temperature));
  double left = u * total;
  for (std::size_t i = 0; i < weights.size(); ++i)
    if ((left -= weights[i]) < 0) return static_cast<std::int32_t>(i);
  return static_cast<std::int32_t>(best - logits.begin());  // rounding ate the last sliver
}

// What does not depend on the model.
std::vector<std::int32_t> checked_prompt(const std::string& prompt, std::int64_t bytes, double temperature,
                                         const Tokenizer& tokenizer) {
  if (prompt.empty())
    throw ConfigError("[sample] the prompt must not be empty: the model needs a first byte to read");
  if (!(temperature >= 0) || !std::isfinite(temperature))
    throw ConfigError(
        fmt::format("[sample] the temperature must be 0 or positive, and finite; it is {}", temperature));
  if (bytes < 0 || bytes > kMostBytes)
    throw ConfigError(fmt::format("[sample] {} bytes cannot be written; ask for 0 to {}", bytes, kMostBytes));
  std::vector<std::int32_t> tokens = tokenizer.encode(prompt);
  if (tokens.empty()) throw ConfigError("[sample] the prompt has no tokens; write some text in it");
  return tokens;
}

void check_vocabulary(const Tokenizer& tokenizer, std::int64_t vocab_size) {
  if (tokenizer.vocab_size() > vocab_size)
    throw ConfigError(
        fmt::format("[sample] the tokenizer has {} tokens, the model (vocab_size) {}; give its own",
                    tokenizer.vocab_size(), vocab_size));
}

std::string sample(Decoder& decoder, const std::vector<std::int32_t>& tokens, std::int64_t bytes,
                   double temperature, std::uint64_t seed, const std::function<void(char)>& on_byte,
                   const Tokenizer& tokenizer) {
  // As many as are needed, and some more: those of a longer array begin with those of a shorter one.
  Array uniforms;
  const auto uniform = [&](std::int64_t i) {
    if (!uniforms.defined() || i >= uniforms.size())
      uniforms = random_uniform({DType::f64, {std::min(bytes, std::max<std::int64_t>(1024, 2 * i))}}, 0, 1,
                                seed, kSampleStream);
    return uniforms.at(i);
  };
  Array token(DType::i32, {1}), logits;
  const auto read = [&](std::int32_t id) {
    token.as<std::int32_t>()[0] = id;
    logits = decoder.step(token);
  };
  for (const std::int32_t id : tokens) read(id);
  std::string out;
  for (std::int64_t i = 0; i < bytes; ++i) {  // at most `bytes` tokens, also where tokens have no bytes
    std::vector<double> scores = logits.to_vector();
    scores.resize(static_cast<std::size_t>(tokenizer.vocab_size()));  // a model may have room for more
    const std::int32_t id = draw(scores, temperature, uniform(i));
    if (id == tokenizer.end_of_text()) break;
    for (const char c : tokenizer.bytes(id)) {
      out += c;
      if (on_byte) on_byte(c);
    }
    if (static_cast<std::int64_t>(out.size()) >= bytes) break;
    if (i + 1 < bytes) read(id);
  }
  return out;
}

}  // namespace

std::string sample_text(const LanguageModelConfig& config, const StateDict& params, const std::string& prompt,
                        std::int64_t bytes, double temperature, std::uint64_t seed,
                        const std::function<void(char)>& on_byte, const Tokenizer& tokenizer) {
  check_vocabulary(tokenizer, config.vocab_size);
  const std::vector<std::int32_t> tokens = checked_prompt(prompt, bytes, temperature, tokenizer);
  const std::int64_t most = static_cast<std::int64_t>(tokens.size()) + bytes;
  LanguageModelConfig read = config;  // a window that is longer than all that is read is as long as that
  if (read.attention_window > most) read.attention_window = most;
  Decoder decoder(read, params, DType::f32, 1, most);
  return sample(decoder, tokens, bytes, temperature, seed, on_byte, tokenizer);
}

std::string sample_text(const LogitsFn& model, const StateDict& params, const std::string& prompt,
                        std::int64_t bytes, double temperature, std::uint64_t seed,
                        const std::function<void(char)>& on_byte, const Tokenizer& tokenizer) {
  const std::vector<std::int32_t> tokens = checked_prompt(prompt, bytes, temperature, tokenizer);
  Decoder decoder(model, params, DType::f32, 1);
  check_vocabulary(tokenizer, decoder.vocab_size());
  return sample(decoder, tokens, bytes, temperature, seed, on_byte, tokenizer);
}

}  // namespace nestgrad
