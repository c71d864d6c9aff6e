#include "models/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "autograd/grad.h"
#include "engine/core/hash.h"
#include "engine/io/file.h"
#include "engine/io/safetensors.h"
#include "models/json.h"
#include "models/language_model.h"
#include "ops/numerics/functions.h"

namespace nestgrad {

namespace {

constexpr DType kType = DType::f32;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;  // of a step
constexpr std::int64_t kBytes = 256;
constexpr std::size_t kNumbers = 5;  // first inputs: tokens, rate, two corrections, steps done
constexpr std::size_t kResults = 2;  // outputs before the parameters: loss, gradient norm
constexpr const char* kFirstMoment = "adamw.m.";
constexpr const char* kSecondMoment = "adamw.v.";
constexpr const char* kFromSeed = "random, of the seed";  // what training began with

nlohmann::ordered_json adamw_json(const AdamWOptions& o) {
  return {{"weight_decay", o.weight_decay},
          {"clip", o.clip},
          {"beta1", o.beta1},
          {"beta2", o.beta2},
          {"eps", o.eps}};
}

std::int64_t step_from(const SafeTensors& file, const std::string& path) {
  const auto at = file.metadata.find("step");
  std::int64_t step = -1;
  if (at != file.metadata.end() && at->second.find_first_not_of("0123456789") == std::string::npos &&
      !at->second.empty() && at->second.size() < 18)
    step = std::stoll(at->second);
  if (step < 0)
    throw IoError(
        fmt::format("{}: not a training checkpoint: its metadata have no "
                    "step count; resume from a folder that train_lm wrote",
                    path));
  return step;
}

// The settings of a checkpoint that are not this run's. Settings that earlier versions did not write (of AdamW, of an
// inner rate's ramp, of packing) are taken for their defaults.
void check_same(const SafeTensors& file, const std::string& key, const std::string& ours,
                const std::string& path) {
  const auto at = file.metadata.find(key);
  const nlohmann::json theirs = parse_json(at == file.metadata.end() ? "{}" : at->second),
                       mine = parse_json(ours);
  nlohmann::json written_later = parse_json(adamw_json(AdamWOptions()).dump());
  written_later["ilr_init"] = 0.0, written_later["ilr_warmup_steps"] = 0, written_later["pack"] = 0;
  std::string different;
  for (const auto& [name, value] : mine.items()) {
    const bool there = theirs.is_object() && theirs.contains(name);
    if (name == "steps" || (there && theirs[name] == value)) continue;
    if (!there && written_later.contains(name) && written_later[name] == value) continue;
    different += fmt::format("{}{} = {}, this run has {}", different.empty() ? "" : "; ", name,
                             there ? shown(theirs[name]) : "nothing", value.dump());
  }
  if (!different.empty())
    throw ConfigError(fmt::format(
        "[train] {} was written with {}; resume with the same settings, or start anew in another folder",
        path, different));
}

std::string fingerprint_of(const StateDict& params) {
  std::uint64_t hash = fnv1a(std::string_view());
  for (const auto& [name, value] : params) {
    const Array here = value.to(Device::cpu());
    hash = fnv1a(std::span(static_cast<const std::byte*>(here.data()), here.bytes()), fnv1a(name, hash));
  }
  return fmt::format("{:016x}", hash);
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
      corpus_(std::move(corpus)) {
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
      corpus_(std::move(corpus)) {
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

std::size_t Trainer::given_count() const { return kNumbers + (options_.pack > 0 ? 2 : 0); }

void Trainer::trace() {
  text_ = fmt::format("{:016x}", corpus_.fingerprint());
  const Spec tokens{DType::i32, {options_.batch, options_.context + 1}}, number{kType, {}};
  std::vector<Spec> first{tokens, number, number, number, number};
  while (first.size() < given_count()) first.push_back({kType, {options_.batch, options_.context}});
  train_ = trace_model(kType, first, [&](ParamTable& table, const std::vector<Tensor>& in) {
    ttt::Stream stream;
    const bool packs = options_.pack > 0;
    const Tensor losses = losses_of(Params(table), in[0], in[4], packs ? in[5] : Tensor(), stream);
    const Tensor loss = mean_loss(losses, packs ? in[6] : Tensor());
    const std::vector<Tensor> params = table.tensors();
    for (const ParamSpec& p : table.specs())
      if (p.name.starts_with(kMomentPrefix))
        throw ConfigError(fmt::format(
            "[train] the parameter '{}' is called as the optimiser's own numbers are; give it another name",
            p.name));
    const GradSeed seed = seed_of_ones(loss);
    const std::vector<Tensor> gradients = pull_back(std::span(&seed, 1), params);
    for (std::size_t i = 0; i < params.size(); ++i)
      if (!gradients[i].defined()) unused_.push_back(table.specs()[i].name);
    if (unused_.size() == params.size())
      throw ConfigError("[train] the loss depends on none of the model's parameters: nothing would learn");
    std::vector<Tensor> m, v;
    for (const ParamSpec& p : table.specs())
      m.push_back(loss.graph().input(Spec{kType, p.shape}, kFirstMoment + p.name));
    for (const ParamSpec& p : table.specs())
      v.push_back(loss.graph().input(Spec{kType, p.shape}, kSecondMoment + p.name));
    const AdamWResult r =
        adamw(table.specs(), params, gradients, m, v, {in[1], in[2], in[3], loss}, options_.adamw);
    std::vector<Tensor> out{loss, r.grad_norm};
    for (const std::vector<Tensor>& part : {r.params, r.m, r.v})
      out.insert(out.end(), part.begin(), part.end());
    return out;
  });
  train_plan_ = std::make_unique<Plan>(
      train_.function.plan({.memory_budget = options_.memory_budget,
                            .donate = adamw_in_place(train_.params.size(), kResults, given_count())}));
  inputs_.clear();
  for (const Spec& spec : first) inputs_.emplace_back(spec);
  begin_with(initial_parameters(train_.params, kType, options_.seed, train_plan_->device()));
}

void Trainer::start_from(StateDict params) {
  check_fits(train_.params, params, "what training starts from");
  std::string start = fingerprint_of(params);
  begin_with(std::move(params));
  start_ = std::move(start);
}

std::vector<Array> Trainer::given() const {
  return {inputs_.begin(), inputs_.begin() + static_cast<std::ptrdiff_t>(given_count())};
}

void Trainer::begin_with(StateDict params) {
  for (const ParamSpec& p : train_.params) {
    params.emplace(kFirstMoment + p.name, Array::zeros(kType, p.shape));
    params.emplace(kSecondMoment + p.name, Array::zeros(kType, p.shape));
  }
  std::vector<Array> inputs = train_.bind(given(), {&params});
  params.clear();
  place_inputs(std::move(inputs));
  start_ = kFromSeed;
  step_ = 0;
}

// Parameters and moments stay where the plan runs. They are no one else's, as steps write over them.
void Trainer::place_inputs(std::vector<Array> inputs) {
  const Device& device = train_plan_->device();
  const Spec number{kType, {}};
  std::vector<Array> outputs{Array(number, device), Array(number, device)};
  for (std::size_t i = given_count(); i < inputs.size(); ++i) {
    if (inputs[i].device() != device) inputs[i] = inputs[i].to(device);
    inputs[i] = std::move(inputs[i]).unshared();
    outputs.push_back(inputs[i]);
  }
  inputs_ = std::move(inputs);
  outputs_ = std::move(outputs);
}

StepResult Trainer::step() {
  const auto t = static_cast<double>(step_ + 1);
  const double rate = cosine_rate(step_, options_.steps, options_.warmup, options_.lr);
  const auto number = static_cast<std::uint64_t>(step_);
  if (options_.pack > 0) {
    PackedWindows windows = packed_batch(corpus_, Split::training, number, options_.batch, options_.context,
                                         options_.pack, options_.seed);
    inputs_[0] = std::move(windows.tokens), inputs_[5] = std::move(windows.places);
    inputs_[6] = std::move(windows.counted);
  } else {
    inputs_[0] = corpus_.batch(Split::training, number, options_.batch, options_.context, options_.seed);
  }
  inputs_[1].as<float>()[0] = static_cast<float>(rate);
  inputs_[2].as<float>()[0] = static_cast<float>(1 / (1 - m::pow(options_.adamw.beta1, t)));
  inputs_[3].as<float>()[0] = static_cast<float>(1 / (1 - m::pow(options_.adamw.beta2, t)));
  inputs_[4].as<float>()[0] = static_cast<float>(step_);
  train_plan_->run(inputs_, outputs_);
  const StepResult result{step_ + 1, outputs_[0].item(), outputs_[1].item(), rate};
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm))
    throw ValueError(fmt::format(
        "[train] step {}: the {} is not finite (loss {}, gradient norm {}); what was saved before is intact. "
        "Lower TrainingOptions::lr, or raise warmup",
        result.step, std::isfinite(result.loss) ? "gradient" : "loss", result.loss, result.grad_norm));
  ++step_;
  return result;
}

std::optional<NonFinite> Trainer::why_not_finite() const {
  std::vector<Array> inputs;
  for (const Array& a : inputs_) inputs.push_back(a.to(Device::cpu()));
  return first_nonfinite(train_.function, inputs);
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

void Trainer::save(const std::string& path) const {
  SafeTensors file;
  for (std::size_t i = given_count(); i < inputs_.size(); ++i)
    file.tensors.emplace(train_.inputs[i], inputs_[i].to(Device::cpu()));
  file.metadata = {{"format", "nestgrad training checkpoint"},
                   {"step", std::to_string(step_)},
                   {"data_position", std::to_string(step_)},
                   {"text", text_},
                   {"rng", fmt::format("philox4x32-10, seed {}, counter from step", options_.seed)},
                   {"start", start_},
                   {"config", config_},
                   {"training", options_.to_json()}};
  write_safetensors(path, file);
}

void Trainer::load(const std::string& path) {
  SafeTensors file = read_safetensors(path);
  const std::int64_t step = step_from(file, path);
  check_same(file, "config", config_, path);
  check_same(file, "training", options_.to_json(), path);
  const auto text = file.metadata.find("text");  // checkpoints of earlier versions do not say
  if (text != file.metadata.end() && text->second != text_)
    throw ConfigError(
        fmt::format("[train] {} was trained on other text (fingerprint {}, this one has {}): a file or its "
                    "place changed; resume with the same text, or start anew in another folder",
                    path, text->second, text_));
  const auto start = file.metadata.find("start");  // likewise
  const bool started = start != file.metadata.end();
  if (started && start_ != kFromSeed && start->second != start_)
    throw ConfigError(fmt::format(
        "[train] {} was not trained from the weights that this run starts from (theirs: {}, these: {}); resume "
        "with the same, or start anew in another folder",
        path, start->second, start_));
  StateDict params;  // all of them, and no other: what the model has no place for is not dropped
  for (const auto& [name, value] : file.tensors)
    if (!name.starts_with(kMomentPrefix)) params.emplace(name, value);
  check_fits(train_.params, params, path);
  std::vector<Array> inputs = train_.bind(given(), {&file.tensors});
  params.clear(), file.tensors.clear();
  place_inputs(std::move(inputs));
  if (started) start_ = start->second;
  step_ = step;
}

StateDict Trainer::parameters() const {
  StateDict out;
  for (std::size_t i = 0; i < train_.params.size(); ++i)
    out.emplace(train_.params[i].name, inputs_[given_count() + i].clone().to(Device::cpu()));
  return out;
}

std::int64_t Trainer::parameter_count() const {
  std::int64_t n = 0;
  for (const ParamSpec& p : train_.params) n += numel(p.shape);
  return n;
}

std::size_t Trainer::arena_bytes() const { return train_plan_->stats().arena_bytes; }

}  // namespace nestgrad
