#include "models/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "engine/core/hash.h"
#include "engine/core/random.h"
#include "engine/io/file.h"
#include "models/end_to_end.h"
#include "models/random_reading.h"

namespace nestgrad {

namespace {

// Where reading token by token first answers something else than reading the whole.
struct Difference {
  std::int64_t token = 0, sequence = 0, logit = 0;
  double stepped = 0, whole = 0, error = 0;  // error: relative to the largest logit of all
};

// tokens [batch, time]; logits [batch, time, vocab] of the whole, finite.
std::optional<Difference> first_difference(Decoder& decoder, const Array& tokens,
                                           const std::vector<double>& logits, double tolerance) {
  const std::int64_t batch = decoder.batch(), vocab = decoder.vocab_size(), time = tokens.shape()[1];
  double largest = 1e-300;
  for (const double x : logits) largest = std::max(largest, std::abs(x));
  Array now(DType::i32, {batch});
  for (std::int64_t t = 0; t < time; ++t) {
    for (std::int64_t b = 0; b < batch; ++b)
      now.as<std::int32_t>()[static_cast<std::size_t>(b)] =
          tokens.as<std::int32_t>()[static_cast<std::size_t>(b * time + t)];
    const std::vector<double> stepped = decoder.step(now).to_vector();
    Difference worst;
    for (std::int64_t i = 0; i < batch * vocab; ++i) {
      const std::int64_t b = i / vocab, v = i % vocab;
      const double one = stepped[static_cast<std::size_t>(i)],
                   all = logits[static_cast<std::size_t>((b * time + t) * vocab + v)],
                   error = std::abs(one - all) / largest;
      if (!(error <= worst.error)) worst = {t, b, v, one, all, error};  // NaN is the worst
      if (std::isnan(error)) break;
    }
    if (!(worst.error <= tolerance)) return worst;
  }
  return {};
}

[[noreturn]] void refuse(const Difference& d, const Decoder& decoder) {
  throw ConfigError(fmt::format(
      "[decoder] read token by token the model answers something else than read as a whole, from token {} on "
      "(the first is 0): logit {} of sequence {} is {:.6g} and not {:.6g}, which is {:.2g} of the largest logit "
      "apart; the stream carries {}. What a token needs of those before it, the function has to ask the stream "
      "for: state() and carry() where stream.stepping(), or with_history() or counter(), see "
      "docs/guide/own_model.md{}",
      d.token, d.logit, d.sequence, d.stepped, d.whole, d.error,
      decoder.carried().empty() ? "nothing" : listed(decoder.carried()),
      d.token == 0
          ? ". The first token has none before it: read as a whole it depends on later ones, or begins "
            "with another value than state() is given"
          : ""));
}

}  // namespace

LogitsFn decoding_model(const LanguageModelConfig& config, std::int64_t capacity, ttt::FormChoice form) {
  if (config.ttt_layer_type == "attention" && capacity < 1)
    throw ConfigError(fmt::format(
        "[decoder] attention needs a capacity, the most tokens it will read; it is {}", capacity));
  if (config.ttt_layer_type != kEndToEnd)
    return language_model(config, {.form = form, .attention_capacity = capacity});
  config.check();
  return [model = end_to_end_config(config)](const Params& p, Tensor token, ttt::Stream& stream) {
    return EndToEndModel(model, p).step(token, stream);
  };
}

Decoder::Decoder(const LanguageModelConfig& config, StateDict params, DType dtype, std::int64_t batch,
                 std::int64_t capacity, ttt::FormChoice form)
    : params_(std::move(params)), bounded_(config.ttt_layer_type == "attention"), capacity_(capacity) {
  trace(decoding_model(config, capacity, form), dtype, batch);
}

Decoder::Decoder(const LogitsFn& model, StateDict params, DType dtype, std::int64_t batch)
    : params_(std::move(params)) {
  trace(model, dtype, batch);
  if (!carried_.names.empty()) return;
  // Right only for a model whose tokens do not depend on each other, which is small.
  const TracedModel whole = traced_whole(model, dtype, {DType::i32, {batch, 4}});
  const Array tokens =
      random_tokens(whole.function.input_spec(0).shape, std::min<std::int64_t>(2, vocab_size()), 1);
  const std::vector<double> logits = whole.function(whole.bind({tokens}, {&params_.all()}))[0].to_vector();
  if (!std::ranges::all_of(logits, [](double x) { return std::isfinite(x); })) return;
  if (const auto d = first_difference(*this, tokens, logits, tolerance_of(dtype))) refuse(*d, *this);
  reset();
}

void Decoder::trace(const LogitsFn& model, DType dtype, std::int64_t batch) {
  if (batch < 1) throw ConfigError(fmt::format("[decoder] the batch must be at least 1, it is {}", batch));
  carried_ = CarriedStates::of(model, params_.all(), dtype, batch, false);
  const auto program = [&](std::int64_t learns) {
    return std::make_unique<StateProgram>(model, carried_, params_, dtype,
                                          StateProgram::Sizes{.batch = batch, .learns = learns});
  };
  step_ = program(0);
  for (const std::int64_t chunk : carried_.chunks) learn_.emplace(chunk, program(chunk));
  reset();
}

void Decoder::require_here() const { moved_.check("decoder", "decoder"); }

void Decoder::require_whole() const {
  require_here();
  if (is_broken_)
    throw ConfigError(
        "[decoder] an earlier step failed after the state had changed, and so it is not that of any position: reset(), or "
        "restore() what was saved before");
}

std::int64_t Decoder::position() const { return require_here(), position_; }
std::int64_t Decoder::vocab_size() const { return require_here(), step_->vocab_size(); }
std::int64_t Decoder::batch() const { return require_here(), step_->logits().shape()[0]; }
const std::vector<std::string>& Decoder::carried() const { return require_here(), carried_.names; }

void Decoder::reset() {
  require_here();
  std::vector<Array> states;
  for (const Array& initial : carried_.initial) states.push_back(initial.clone().to(step_->device()));
  states_ = std::move(states);  // all of them, or, where memory is short, those that were
  position_ = 0;
  is_broken_ = false;
}

Array Decoder::step(const Array& tokens) {
  require_whole();
  if (bounded_ && position_ >= capacity_)
    throw ConfigError(fmt::format(
        "[decoder] the attention cache holds {} tokens and is full; make a decoder with more capacity",
        capacity_));
  carried_.check_counts("decoder", position_);
  check_tokens(tokens);
  const auto is_due = [&](const auto& program) { return position_ > 0 && position_ % program.first == 0; };
  const bool learns = std::ranges::any_of(learn_, is_due);
  if (learns) check_vocabulary(tokens);  // before anything is learnt
  is_broken_ = learns;
  for (const auto& program : learn_)
    if (is_due(program)) program.second->run(tokens, states_);
  try {
    step_->run(tokens, states_);
  } catch (const ValueError&) {  // of the op that looked the token up
    check_vocabulary(tokens);
    throw;
  }
  is_broken_ = true;  // has read the token; without memory for the answer it could be read again
  Array answer = step_->logits().clone();
  is_broken_ = false;
  ++position_;
  return answer;
}

void Decoder::check_tokens(const Array& tokens) const {
  const Shape wanted{batch()};
  if (!tokens.defined() || tokens.shape() != wanted)
    throw ShapeError(fmt::format("[decoder] tokens are {}; a step wants i32{}, one token of each sequence",
                                 tokens.defined() ? to_string(tokens.spec()) : "empty", to_string(wanted)));
  if (tokens.dtype() != DType::i32)
    throw DTypeError(fmt::format("[decoder] tokens are {}; they must be i32", to_string(tokens.spec())));
}

void Decoder::check_vocabulary(const Array& tokens) const {
  for (std::int64_t i = 0; i < batch(); ++i)
    if (const double id = tokens.at(i); id < 0 || id >= static_cast<double>(vocab_size()))
      throw ValueError(fmt::format("[decoder] token {} of sequence {} is outside of the vocabulary, 0 to {}",
                                   id, i, vocab_size() - 1));
}

StateDict Decoder::state() const {
  require_whole();
  StateDict out;
  for (std::size_t i = 0; i < states_.size(); ++i)
    out.emplace(carried_.names[i], states_[i].clone().to(Device::cpu()));
  return out;
}

void Decoder::restore(const StateDict& state, std::int64_t position) {
  require_here();
  check_position("decoder", position, bounded_ ? capacity_ : 0);
  carried_.check_fits(state, position);
  std::vector<Array> states;
  for (const std::string& name : carried_.names) states.push_back(state.at(name).clone().to(step_->device()));
  states_ = std::move(states);
  position_ = position;
  is_broken_ = false;
}

void check_decoding(const LogitsFn& model, const CheckDecodingOptions& o) {
  const RandomReading whole = read_at_random("check_decoding", model, o);
  Decoder decoder(model, whole.params, o.dtype, o.batch);
  if (const auto d = first_difference(decoder, whole.tokens, whole.logits, whole.tolerance))
    refuse(*d, decoder);
}

}  // namespace nestgrad
