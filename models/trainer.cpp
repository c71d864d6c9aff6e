#include "models/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/core/index.h"
#include "models/language_model.h"
#include "models/training_checkpoint.h"
#include "ops/collectives.h"
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
  out["ilr_init"] = 0.0, out["ilr_warmup_steps"] = 0, out["pack"] = 0, out["grains"] = 1, out["slices"] = 1;
  return out.dump();
}

TrainingSetup setup_of(const TrainingOptions& options) {
  return {.seed = options.seed,
          .adamw = options.adamw,
          .memory_budget = options.memory_budget,
          .grains = options.grains,
          .slices = options.slices,
          .processes = options.processes};
}

// Elements [begin, end) of each row, of rows [begin, end).
Array cut_out(const Array& a, IndexRange rows, IndexRange columns) {
  Array out(a.dtype(), {rows.size(), columns.size()});
  const std::size_t size = a.bytes() / uz(a.size()), width = uz(a.shape()[1]) * size;
  std::byte* to = out.data();
  for (std::int64_t r = rows.begin; r < rows.end; ++r, to += uz(columns.size()) * size)
    std::copy_n(a.data() + uz(r) * width + uz(columns.begin) * size, uz(columns.size()) * size, to);
  return out;
}

// A grain's slice of an array of a batch. Slices of tokens have the one that comes next too.
struct BatchParts {
  std::int64_t rows, tokens, context, count;

  explicit BatchParts(const TrainingOptions& o)
      : rows(o.batch / o.grains),
        tokens(o.context / o.slices),
        context(o.context),
        count(o.grains * o.slices) {}
  Array of(const Array& whole, std::int64_t grain, std::int64_t slice) const {
    if (whole.shape().empty() || count == 1) return whole;
    const std::int64_t more = whole.shape()[1] - context;
    return cut_out(whole, {grain * rows, (grain + 1) * rows}, {slice * tokens, (slice + 1) * tokens + more});
  }
};

// Parameters are each slice's own, as its share of their gradients is.
Params own_params(ParamTable& table, const ProcessGroup& slices) {
  const Params params(table);
  if (slices.size() == 1) return params;
  return params.through(
      [params, slices](const Params::Request& request) { return own(params.get(request), slices); });
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
  if (const std::string why = why_not_cut(model, context / slices, slices); !why.empty())
    throw ConfigError(fmt::format("[train] {} (slices)", why));
  if (model.ilr_warmup_steps > steps)
    throw ConfigError(fmt::format(
        "[train] the inner rate's ramp of {} steps (ilr_warmup_steps) is longer than the training of {}: "
        "the model would never be trained with the rate that it reads with",
        model.ilr_warmup_steps, steps));
}

std::int64_t default_grains(std::int64_t batch) {
  std::int64_t grains = 8;
  while (batch % grains != 0) --grains;
  return grains;
}

std::int64_t resumed_grains(const SafeTensors& file, TrainingOptions asked, const std::string& path) {
  asked.grains = grains_of_checkpoint(file, path);
  check_settings(file, asked.to_json(), written_later(), path);
  return asked.grains;
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
  at_least("grains", grains, 1);
  at_least("slices", slices, 1);
  if (batch % grains != 0)
    throw ConfigError(fmt::format(
        "[train] a batch of {} sequences cannot be cut into {} grains of one size (grains): choose a divisor of the "
        "batch",
        batch, grains));
  if (context % slices != 0)
    throw ConfigError(fmt::format(
        "[train] a context of {} tokens cannot be cut into {} slices of one length (slices): choose a divisor of the "
        "context",
        context, slices));
  setup_of(*this).check();
  if (pack > context)
    throw ConfigError(fmt::format(
        "[train] documents cannot begin at multiples of {} tokens in a context of {} (pack)", pack, context));
  if (context > kMostTokens / batch)
    throw ConfigError(
        fmt::format("[train] {} sequences of {} bytes are more than the {} that a step can take", batch,
                    context, kMostTokens));
  if (!(static_cast<float>(lr) > 0) || !std::isfinite(static_cast<float>(lr)))  // steps are made in f32
    throw ConfigError(
        fmt::format("[train] lr, the learning rate, must be positive and finite in f32, it is {}", lr));
  adamw.check();
}

std::string TrainingOptions::to_json() const {
  nlohmann::ordered_json json{{"steps", steps}, {"batch", batch},   {"context", context},
                              {"lr", lr},       {"warmup", warmup}, {"seed", seed},
                              {"pack", pack},   {"grains", grains}, {"slices", slices}};
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

// all_counted: of the whole batch, where this is one grain of it; the losses of the grains then have the right mean.
Tensor Trainer::mean_loss(Tensor losses, Tensor counted, Tensor all_counted) const {
  if (!counted.defined()) return mean(losses);
  if (!all_counted.defined()) return sum(losses * counted) / max(sum(counted), 1.0);
  return sum(losses * counted) * static_cast<double>(options_.grains * options_.slices) /
         max(all_counted, 1.0);
}

void Trainer::trace() {
  const bool packs = options_.pack > 0, has_parts = options_.grains * options_.slices > 1;
  const std::int64_t rows = options_.batch / options_.grains, tokens = options_.context / options_.slices;
  std::vector<Spec> batch{{DType::i32, {rows, tokens + 1}}, {DType::f32, {}}};
  if (packs) batch.resize(4, Spec{DType::f32, {rows, tokens}});
  if (packs && has_parts) batch.push_back({DType::f32, {}});  // tokens that count in all parts
  training_.add(batch, [&](ParamTable& table, const std::vector<Tensor>& in, const ProcessGroup& slices) {
    ttt::Stream stream;
    stream.cut(slices);
    const Tensor losses =
        losses_of(own_params(table, slices), in[0], in[1], packs ? in[2] : Tensor(), stream);
    if (options_.slices > 1 && !stream.heeds_cut())
      throw ConfigError(
          "[train] sequences are cut into slices (slices), but the model does not look what stands before one: its tokens "
          "would read those of their own slice alone. Let it ask the stream (ttt/stream.h), or leave slices out");
    return Training::Objective{
        mean_loss(losses, packs ? in[3] : Tensor(), packs && has_parts ? in[4] : Tensor())};
  });
}

RunIdentity Trainer::identity() const {
  return {.config = config_,
          .training = options_.to_json(),
          .data = fmt::format("{:016x}", corpus_.fingerprint(options_.pack > 0)),
          .seed = options_.seed,
          .written_later = written_later()};
}

// The whole batch of a step.
std::vector<Array> Trainer::batch_of(std::uint64_t step) const {
  std::vector<Array> batch;
  if (options_.pack > 0) {
    PackedWindows windows = packed_batch(corpus_, Split::training, step, options_.batch, options_.context,
                                         options_.pack, options_.seed);
    batch = {std::move(windows.tokens), Array(), std::move(windows.places), std::move(windows.counted)};
  } else {
    batch = {corpus_.batch(Split::training, step, options_.batch, options_.context, options_.seed), Array()};
  }
  batch[1] = Array::scalar(static_cast<double>(step), DType::f32);
  return batch;
}

StepResult Trainer::step() {
  const std::int64_t done = training_.steps_done();
  const double rate = cosine_rate(done, options_.steps, options_.warmup, options_.lr);
  std::vector<Array> batch = batch_of(static_cast<std::uint64_t>(done));
  if (options_.grains * options_.slices > 1 && options_.pack > 0) {
    double counted = 0;
    for (const float one : batch[3].as<float>()) counted += one;
    batch.push_back(Array::scalar(counted, DType::f32));
  }
  // Kept for why_not_finite(): it must not name this trainer, which may be moved.
  const auto part = [parts = BatchParts(options_), batch](std::int64_t grain, std::int64_t slice) {
    std::vector<Array> out;
    for (const Array& a : batch) out.push_back(parts.of(a, grain, slice));
    return out;
  };
  training_.compare_processes([this] { return identity(); });
  const Training::Step made = training_.step_parts(0, part, rate);
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
  const std::int64_t batch = std::min(options_.batch, windows.shape()[0]);
  if (options_.slices > 1) return validation_of_losses(losses_of_slices({windows, Array()}, batch));
  return validation_of(loss_, parameters(), windows, batch, training_.processes());
}

// Of windows, `batch` at a time: each token's, the mean over a batch. given: tokens, and places if documents are packed.
std::vector<std::vector<double>> Trainer::losses_of_slices(const std::vector<Array>& given,
                                                           std::int64_t batch) const {
  const std::int64_t tokens = options_.context / options_.slices, count = given[0].shape()[0] / batch;
  const bool packs = given[1].defined();
  std::vector<Spec> specs{{DType::i32, {batch, tokens + 1}}};
  if (packs) specs.push_back({DType::f32, {batch, tokens}});
  const auto output = [&](ParamTable& table, const std::vector<Tensor>& in, const ProcessGroup& slices) {
    ttt::Stream stream;
    stream.cut(slices);
    return mean(losses_of(own_params(table, slices), in[0], {}, packs ? in[1] : Tensor(), stream), {0});
  };
  return training_.read_slices(specs, output, count, [&](std::int64_t b, std::int64_t slice) {
    std::vector<Array> out;
    for (std::size_t i = 0; i < specs.size(); ++i)
      out.push_back(cut_out(given[i], {b * batch, (b + 1) * batch},
                            {slice * tokens, slice * tokens + specs[i].shape[1]}));
    return out;
  });
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
  // Their numbers are looked at where losses are counted.
  const auto is = [&](const Array& a, DType dtype, std::int64_t width) {
    return a.defined() && a.dtype() == dtype && a.shape().size() == 2 && a.shape()[1] == width &&
           a.shape()[0] == windows.tokens.shape()[0];
  };
  if (!is(windows.tokens, DType::i32, options_.context + 1) ||
      !is(windows.places, DType::f32, options_.context))
    throw ShapeError(fmt::format(
        "[train] packed windows must be tokens i32 [windows, {}] and places f32 [windows, {}], as validation_documents() "
        "gives them",
        options_.context + 1, options_.context));
  if (options_.slices > 1)
    return validation_of_losses(losses_of_slices({windows.tokens, windows.places}, 1), windows);
  const DocumentLossFn losses = [this](const Params& params, Tensor tokens, Tensor places) {
    ttt::Stream stream;
    return losses_of(params, tokens, {}, places, stream);
  };
  return validation_of(losses, parameters(), windows, training_.processes());
}

}  // namespace nestgrad
