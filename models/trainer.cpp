#include "models/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "models/language_model.h"
#include "ops/ops.h"

namespace nestgrad {

namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;  // of a step
constexpr std::int64_t kBytes = 256;

nlohmann::ordered_json adamw_json(const AdamWOptions& o) {
  return {{"weight_decay", o.weight_decay},
          {"clip", o.clip},
          {"beta1", o.beta1},
          {"beta2", o.beta2},
          {"eps", o.eps}};
}

// Settings that earlier versions did not write (of AdamW, of an inner rate's ramp, of packing), as they were then.
std::string written_later() {
  nlohmann::ordered_json out = adamw_json(AdamWOptions());
  out["ilr_init"] = 0.0, out["ilr_warmup_steps"] = 0, out["pack"] = 0;
  return out.dump();
}

TrainingSetup setup_of(const TrainingOptions& options) {
  return {.seed = options.seed, .adamw = options.adamw, .memory_budget = options.memory_budget};
}

}  // namespace

void TrainingOptions::check() const {
  model.check();
  if (model.vocab_size != kBytes)
    throw ConfigError(fmt::format(
        "[train] training reads text as bytes: vocab_size must be {}, it is {}; a model that reads "
        "with another tokenizer can be sampled and inspected, not trained",
        kBytes, model.vocab_size));
  check_without_model();
  if (model.ilr_warmup_steps > steps)
    throw ConfigError(fmt::format(
        "[train] the inner rate's ramp of {} steps (ilr_warmup_steps) is longer than the training of {}: "
        "the model would never be trained with the rate that it reads with",
        model.ilr_warmup_steps, steps));
}

void TrainingOptions::check_without_model() const {
  const auto at_least = [](const char* field, std::int64_t value, std::int64_t least) {
    if (value < least)
      throw ConfigError(fmt::format("[train] {} must be at least {}, it is {}", field, least, value));
  };
  at_least("steps", steps, 1);
  at_least("batch", batch, 1);
  at_least("context", context, 2);
  at_least("warmup", warmup, 0);
  at_least("checkpoint_every", checkpoint_every, 0);
  at_least("pack", pack, 0);
  if (pack > context)
    throw ConfigError(fmt::format(
        "[train] documents cannot begin at multiples of {} tokens in a context of {} (pack)", pack, context));
  if (context > kMostTokens / batch)
    throw ConfigError(
        fmt::format("[train] {} sequences of {} bytes are more than the {} that a step can take", batch,
                    context, kMostTokens));
  if (!(lr > 0) || !std::isfinite(lr))
    throw ConfigError(
        fmt::format("[train] lr, the learning rate, must be positive and finite, it is {}", lr));
  adamw.check();
}

std::string TrainingOptions::to_json() const {
  nlohmann::ordered_json json{{"steps", steps},   {"batch", batch}, {"context", context}, {"lr", lr},
                              {"warmup", warmup}, {"seed", seed},   {"pack", pack}};
  json.update(adamw_json(adamw));
  return json.dump();
}

Trainer::Trainer(const TrainingOptions& options, ByteCorpus corpus)
    : options_(options),
      loss_([model = options.model, every = options.checkpoint_every](const Params& params, Tensor tokens,
                                                                      Tensor step, ttt::Stream& stream) {
        return next_token_loss(model, params, tokens, stream, every, step);
      }),
      config_(options.model.to_json()),
      corpus_(std::move(corpus)),
      training_(setup_of(options)) {
  options_.check();
  trace();
}

Trainer::Trainer(const TrainingOptions& options, ByteCorpus corpus, const LogitsFn& model)
    : options_(options),
      loss_([model](const Params& params, Tensor tokens, Tensor, ttt::Stream& stream) {
        const LogitsFn of_bytes = [&](const Params& p, Tensor bytes, ttt::Stream& s) {
          const Tensor logits = logits_of(model, p, bytes, s);
          if (logits.dim(2) != kBytes)
            throw ShapeError(fmt::format(
                "[train] the model makes logits {} of bytes {}; they must be {}, one for each value of a byte",
                to_string(logits.spec()), to_string(bytes.spec()),
                to_string(Shape{bytes.dim(0), bytes.dim(1), kBytes})));
          return logits;
        };
        return next_token_loss(of_bytes, params, tokens, stream);
      }),
      config_(R"({"model": "a function of the program that wrote this"})"),
      corpus_(std::move(corpus)),
      training_(setup_of(options)) {
  options_.check_without_model();
  trace();
}

Tensor Trainer::losses_of(const Params& params, Tensor tokens, Tensor step, Tensor places,
                          ttt::Stream& stream) const {
  if (places.defined()) stream.pack(places, options_.pack);
  const Tensor losses = loss_(params, tokens, step, stream);
  if (places.defined() && !stream.has_looked())
    throw ConfigError(
        "[train] documents are packed (pack), but the model does not look where they begin: it would read one with what "
        "the one before has left. Let it ask the stream for places(), or for before(), conv() and positions(), or leave "
        "pack out");
  return losses;
}

Tensor Trainer::mean_loss(Tensor losses, Tensor counted) const {
  return counted.defined() ? sum(losses * counted) / max(sum(counted), 1.0) : mean(losses);
}

void Trainer::trace() {
  const bool packs = options_.pack > 0;
  std::vector<Spec> batch{{DType::i32, {options_.batch, options_.context + 1}}, {DType::f32, {}}};
  if (packs) batch.resize(4, Spec{DType::f32, {options_.batch, options_.context}});
  training_.add(batch, [&](ParamTable& table, const std::vector<Tensor>& in) {
    ttt::Stream stream;
    const Tensor losses = losses_of(Params(table), in[0], in[1], packs ? in[2] : Tensor(), stream);
    return Training::Objective{mean_loss(losses, packs ? in[3] : Tensor())};
  });
}

RunIdentity Trainer::identity() const {
  return {.config = config_,
          .training = options_.to_json(),
          .data = fmt::format("{:016x}", corpus_.fingerprint()),
          .seed = options_.seed,
          .written_later = written_later()};
}

StepResult Trainer::step() {
  const std::int64_t done = training_.steps_done();
  const double rate = cosine_rate(done, options_.steps, options_.warmup, options_.lr);
  const auto number = static_cast<std::uint64_t>(done);
  std::vector<Array> batch;
  if (options_.pack > 0) {
    PackedWindows windows = packed_batch(corpus_, Split::training, number, options_.batch, options_.context,
                                         options_.pack, options_.seed);
    batch = {std::move(windows.tokens), Array(), std::move(windows.places), std::move(windows.counted)};
  } else {
    batch = {corpus_.batch(Split::training, number, options_.batch, options_.context, options_.seed),
             Array()};
  }
  batch[1] = Array::scalar(static_cast<double>(done), DType::f32);
  const Training::Step made = training_.step(0, batch, rate);
  return {done + 1, made.loss, made.grad_norm, rate};
}

Array Trainer::validation_windows(std::int64_t max_windows) const {
  const Array all = corpus_.validation_windows(options_.context, max_windows);
  const std::int64_t count = all.shape()[0], batch = std::min(options_.batch, count);
  Array whole(DType::i32, {count / batch * batch, options_.context + 1});
  std::ranges::copy(all.as<std::int32_t>().first(static_cast<std::size_t>(whole.size())),
                    whole.as<std::int32_t>().begin());
  return whole;
}

Validation Trainer::validate(const Array& windows) const {
  const std::int64_t width = options_.context + 1;
  if (windows.dtype() != DType::i32 || windows.shape().size() != 2 || windows.shape()[0] < 1 ||
      windows.shape()[1] != width)
    throw ShapeError(
        fmt::format("[train] validation windows are {}; they must be i32 [windows, {}], as "
                    "validation_windows() gives them",
                    to_string(windows.spec()), width));
  if (options_.pack > 0)
    throw ConfigError(
        "[train] this model is trained on packed documents; validate it on validation_documents()");
  return validation_of(loss_, parameters(), windows, std::min(options_.batch, windows.shape()[0]));
}

PackedWindows Trainer::validation_documents(std::int64_t max_windows) const {
  if (options_.pack == 0)
    throw ConfigError(
        "[train] this model is trained on windows of running text; validate it on validation_windows()");
  return packed_validation(corpus_, options_.context, options_.pack, max_windows);
}

Validation Trainer::validate(const PackedWindows& windows) const {
  if (options_.pack == 0)
    throw ConfigError(
        "[train] this model is trained on windows of running text; validate it on validation_windows()");
  const DocumentLossFn losses = [this](const Params& params, Tensor tokens, Tensor places) {
    ttt::Stream stream;
    return losses_of(params, tokens, {}, places, stream);
  };
  return validation_of(losses, parameters(), windows);
}

}  // namespace nestgrad
