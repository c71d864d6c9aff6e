#include "models/adaptation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "autograd/grad.h"
#include "autograd/scan.h"
#include "engine/core/index.h"
#include "models/optimizer.h"

namespace nestgrad {

namespace {

constexpr DType kType = DType::f32;
constexpr double kOwnTokenError =
    1e-3;  // of a score: how far f32 may round apart what segments of different lengths give
constexpr std::array<std::pair<std::string_view, Adapted>, 4> kNames{{{"nothing", Adapted::nothing},
                                                                      {"sgd", Adapted::sgd},
                                                                      {"norms", Adapted::norms},
                                                                      {"lora", Adapted::lora}}};

bool has_product_beside(const ParamSpec& p) {
  const auto named = [&](const char* part) { return p.name.find(part) != std::string::npos; };
  const bool stacked = named(".h.blocks.") || named(".h.prime_storage.");  // TTT-E2E: [blocks, rows, columns]
  return p.shape.size() == (stacked ? 3 : 2) && p.init.kind == Init::Kind::normal && !named("embed") &&
         !named(".wte.");
}

// What learns of a model with these parameters.
std::vector<ParamSpec> learning_of(const std::vector<ParamSpec>& params, const AdaptationOptions& o) {
  std::vector<ParamSpec> out;
  for (const ParamSpec& p : params) {
    if (o.what == Adapted::sgd || (o.what == Adapted::norms && is_norm(p))) out.push_back(p);
    if (o.what != Adapted::lora || !has_product_beside(p)) continue;
    for (ParamSpec& factor : lora_factors(p, o.rank)) out.push_back(std::move(factor));
  }
  if (out.empty() && o.what != Adapted::nothing)
    throw ConfigError(fmt::format(
        "[adaptation] nothing of this model can learn by '{}': it has no {}; take sgd", name(o.what),
        o.what == Adapted::norms ? "parameter named norm" : "matrix beside the embedding"));
  return out;
}

}  // namespace

bool is_norm(const ParamSpec& p) {
  return p.name.find("norm") != std::string::npos || p.name.find("ln_f") != std::string::npos;
}

std::array<ParamSpec, 2> lora_factors(const ParamSpec& matrix, std::int64_t rank) {
  if (matrix.shape.size() < 2)
    throw ShapeError(fmt::format("[adaptation] '{}' is {}: a parameter of at least two axes has factors",
                                 matrix.name, to_string(matrix.shape)));
  Shape of_b = matrix.shape, of_a = matrix.shape;
  const std::int64_t columns = of_b.back();
  of_b.back() = rank, of_a[of_a.size() - 2] = rank;
  return {ParamSpec{matrix.name + ".lora_B", of_b, Init::zeros()},
          ParamSpec{matrix.name + ".lora_A", of_a, Init::lecun(columns)}};
}

std::string matrix_of_factor(const std::string& name) { return name.substr(0, name.rfind('.')); }

Adapted adapted_named(std::string_view name) {
  std::string all;
  for (const auto& [known, adapted] : kNames) {
    if (known == name) return adapted;
    all += fmt::format("{}{}", all.empty() ? "" : ", ", known);
  }
  throw ConfigError(fmt::format("[adaptation] '{}' is none of {}", name, all));
}

std::string_view name(Adapted adapted) {
  return std::ranges::find(kNames, adapted, &std::pair<std::string_view, Adapted>::second)->first;
}

// Where a small language model gained most, of 0.003, 0.03 and 0.3 (docs/guide/reading.md).
double default_rate(Adapted what) { return what == Adapted::sgd ? 0.03 : 0.3; }

void AdaptationOptions::check() const {
  if (!(rate >= 0) || !std::isfinite(rate))
    throw ConfigError(
        fmt::format("[adaptation] rate must be positive and finite, or 0 for its default; it is {}", rate));
  if (!(clip > 0)) throw ConfigError(fmt::format("[adaptation] clip must be positive, it is {}", clip));
  for (const auto& [field, value] : {std::pair{"rate", rate}, std::pair{"clip", clip}})
    if (value > 0 &&
        (static_cast<float>(value) == 0 || (std::isfinite(value) && std::isinf(static_cast<float>(value)))))
      throw ConfigError(
          fmt::format("[adaptation] {} is {}; steps are made in f32, which does not hold it", field, value));
  if (rank < 1 || rank > kMostExtent)
    throw ConfigError(fmt::format("[adaptation] rank must be 1 to {}, it is {}", kMostExtent, rank));
}

// Of segments of one length.
struct AdaptingScorer::Program {
  Plan score, learn;
  // Tokens, parameters, what learns. Outputs: losses; of `learn` then the gradient's norm, and what learns.
  std::vector<Array> inputs, outputs;
};

AdaptingScorer::AdaptingScorer(const LanguageModelConfig& config, StateDict params,
                               const AdaptationOptions& options)
    : AdaptingScorer(LossFn([config](const Params& p, Tensor tokens) {
                       ttt::Stream stream;
                       return next_token_loss(config, p, tokens, stream);
                     }),
                     std::move(params), options) {}

AdaptingScorer::AdaptingScorer(const LogitsFn& model, StateDict params, const AdaptationOptions& options)
    : AdaptingScorer(LossFn([model](const Params& p, Tensor tokens) {
                       ttt::Stream stream;
                       return next_token_loss(model, p, tokens, stream);
                     }),
                     std::move(params), options) {}

AdaptingScorer::AdaptingScorer(LossFn loss, StateDict params, const AdaptationOptions& options)
    : loss_(std::move(loss)), options_(options), params_(std::move(params)) {
  for (auto& [name, value] : params_) value = std::move(value).unshared();
  options_.check();
  if (options_.rate == 0) options_.rate = default_rate(options_.what);
  const TracedModel model =
      trace_model(kType, {{DType::i32, {1, 3}}},
                  [&](ParamTable& table, const Tensors& in) { return Tensors{loss_(Params(table), in[0])}; });
  check_fits(model.params, params_, "what is to be adapted");
  learning_ = learning_of(model.params, options_);
  reset();
}

// The programs are made anew at need.
AdaptingScorer::AdaptingScorer(const AdaptingScorer& other)
    : loss_(other.loss_),
      options_(other.options_),
      params_(other.params_),
      learning_(other.learning_),
      values_(other.values_),
      steps_(other.steps_),
      moved_(other.moved_) {
  for (Array& value : values_) value = value.clone();
}

AdaptingScorer& AdaptingScorer::operator=(const AdaptingScorer& other) {
  return *this = AdaptingScorer(other);
}

void AdaptingScorer::reset() {
  here();
  std::vector<Array> values;
  for (const ParamSpec& p : learning_) {
    const auto own = params_.find(p.name);
    values.push_back(own != params_.end() ? own->second.clone() : initial_value(p, kType, options_.seed));
  }
  values_ = std::move(values);
  steps_ = 0;
}

std::int64_t AdaptingScorer::learning_parameters() const {
  std::int64_t out = 0;
  for (const ParamSpec& p : here().learning_) out += numel(p.shape);
  return out;
}

AdaptingScorer::Program& AdaptingScorer::program(std::int64_t length) {
  std::shared_ptr<Program>& found = programs_[length];
  if (found) return *found;
  const Spec tokens{DType::i32, {1, length + 1}};
  const TracedModel model = trace_model(kType, {tokens}, [&](ParamTable& table, const Tensors& in) {
    return Tensors{reshape(loss_(Params(table), in[0]), {length})};
  });
  std::vector<Spec> specs{tokens};
  for (std::size_t i = 1; i < model.inputs.size(); ++i) specs.push_back(model.function.input_spec(i));
  for (const ParamSpec& p : learning_) specs.push_back({kType, p.shape});
  const std::size_t first = model.inputs.size();
  const auto losses_of = [&](const Tensors& in, std::span<const Tensor> learning) {
    Tensors now(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(first));
    for (std::size_t i = 0; i < learning_.size(); ++i) {
      const bool is_product = options_.what == Adapted::lora;
      const std::string name = is_product ? matrix_of_factor(learning_[i].name) : learning_[i].name;
      const auto at = static_cast<std::size_t>(std::ranges::find(model.inputs, name) - model.inputs.begin());
      if (!is_product) now[at] = learning[i];
      else now[at] = now[at] + matmul(learning[i], learning[i + 1]), ++i;
    }
    return model.function(std::span<const Tensor>(now))[0];
  };
  const Function score =
      trace([&](const Tensors& in) { return Tensors{losses_of(in, std::span(in).subspan(first))}; }, specs);
  const Function learn = trace(
      [&](const Tensors& in) {
        Tensors at(in.begin() + static_cast<std::ptrdiff_t>(first), in.end());
        for (Tensor& t : at) t = probe(t);
        const Tensor losses = losses_of(in, at);
        const GradSeed seed = seed_of_ones(mean(losses));
        const Tensors gradients =
            pull_back(std::span(&seed, 1), at);  // undefined: a short segment does not need it
        Tensors out{losses};
        const Tensor squares = sum_of_squares(gradients);
        out.push_back(squares.defined() ? sqrt(squares) : zeros(kType, {}));
        const Tensor step = options_.rate * min(options_.clip / max(out[1], 1e-30), 1.0);
        for (std::size_t i = 0; i < at.size(); ++i)
          out.push_back(gradients[i].defined() ? at[i] - step * gradients[i] : at[i]);
        return out;
      },
      specs);
  const Array none = Array::zeros(DType::i32, tokens.shape);
  std::vector<Array> inputs = model.bind({none}, {&params_});
  inputs.insert(inputs.end(), values_.begin(), values_.end());
  std::vector<Array> outputs;
  for (std::size_t i = 0; i < learn.outputs().size(); ++i) outputs.emplace_back(learn.output_spec(i));
  found =
      std::make_shared<Program>(Program{score.plan(), learn.plan(), std::move(inputs), std::move(outputs)});
  return *found;
}

std::vector<double> AdaptingScorer::score(std::span<const std::int32_t> tokens, bool learn) {
  here();
  if (tokens.size() < 2)
    throw ShapeError(fmt::format(
        "[adaptation] a segment has {} tokens; it needs two, one to read and one to score", tokens.size()));
  Program& p = program(std::ssize(tokens) - 1);
  std::ranges::copy(tokens, p.inputs[0].as<std::int32_t>().begin());
  std::ranges::copy(values_, p.inputs.end() - std::ssize(values_));
  const bool learns = learn && !values_.empty();
  if (learns) p.learn.run(p.inputs, p.outputs);
  std::vector<double> out = (learns ? p.outputs[0] : p.score.run(p.inputs)[0]).to_vector();
  const auto refuse = [&](const char* what) {
    throw ValueError(
        steps_ == 0
            ? fmt::format(
                  "[adaptation] the {} of a text is not finite before anything was learnt: the model's weights "
                  "hold NaN or infinity, or it has never seen such tokens",
                  what)
            : fmt::format("[adaptation] after {} steps the {} is not finite; lower the rate, which is {}",
                          steps_, what, options_.rate));
  };
  if (!std::ranges::all_of(out, [](double x) { return std::isfinite(x); })) refuse("loss");
  if (!learns) return out;
  if (!std::isfinite(p.outputs[1].item())) refuse("gradient");
  for (std::size_t i = 0; i < values_.size(); ++i) std::swap(values_[i], p.outputs[i + 2]);
  ++steps_;
  return out;
}

std::vector<double> score_text(AdaptingScorer& scorer, std::span<const std::int32_t> tokens,
                               std::int64_t segment, const std::function<void(double)>& progress) {
  if (segment < 1)
    throw ConfigError(fmt::format("[adaptation] a segment of {} tokens; it needs one or more", segment));
  if (tokens.size() < 2)
    throw ShapeError(fmt::format("[adaptation] the text has {} tokens; it needs two or more", tokens.size()));
  scorer.reset();
  std::vector<double> out;
  for (std::size_t begin = 0; begin + 1 < tokens.size(); begin += uz(segment)) {
    const std::size_t length = std::min(uz(segment), tokens.size() - 1 - begin);
    const std::vector<double> scores = scorer.score(tokens.subspan(begin, length + 1));
    out.insert(out.end(), scores.begin(), scores.end());
    if (progress) progress(static_cast<double>(out.size()) / static_cast<double>(tokens.size() - 1));
  }
  return out;
}

namespace {

// A token's score is the same where the model is not given it, as the last of a segment, and where it is.
void check_own_token_unread(AdaptingScorer& scorer, std::span<const std::int32_t> tokens,
                            std::int64_t segment) {
  const std::size_t length = std::min(uz(segment), tokens.size() - 1), place = (length + 1) / 2;
  if (place == length) return;  // segments of one token: none is ever given
  scorer.reset();
  const double unread = scorer.score(tokens.first(place + 1), false).back(),
               read = scorer.score(tokens.first(length + 1), false)[place - 1];
  if (std::abs(read - unread) <= kOwnTokenError * std::max(1.0, std::abs(unread))) return;
  throw ConfigError(fmt::format(
      "[adaptation] a score looks at its own token: that of token {} is {:.9g} where the model is given the token, and {:.9g} "
      "where it is the last of its segment and is not",
      place, read, unread));
}

}  // namespace

void check_no_look_ahead(AdaptingScorer& scorer, std::span<const std::int32_t> tokens, std::int64_t segment) {
  const std::vector<double> scores = score_text(scorer, tokens, segment);
  const auto different = std::ranges::find_if(tokens, [&](std::int32_t t) { return t != tokens[0]; });
  if (different == tokens.end())
    throw ConfigError(
        "[adaptation] all tokens are alike, which proves nothing; give a text whose tokens differ");
  constexpr std::size_t kPlaces = 9;
  for (std::size_t i = 1; i <= kPlaces; ++i) {
    const std::size_t place =
        std::clamp<std::size_t>(tokens.size() * i / (kPlaces + 1), 1, tokens.size() - 1);
    std::vector<std::int32_t> other(tokens.begin(), tokens.end());
    for (std::size_t t = place; t < other.size(); ++t)
      other[t] = tokens[t] == tokens[0] ? *different : tokens[0];
    const std::vector<double> now = score_text(scorer, other, segment);
    for (std::size_t t = 0; t + 1 < place; ++t)
      if (now[t] != scores[t])
        throw ConfigError(fmt::format(
            "[adaptation] a score looks ahead: that of token {} is {:.9g}, and {:.9g} where the tokens from {} on are "
            "others",
            t + 1, scores[t], now[t], place));
    if (std::equal(now.begin() + static_cast<std::ptrdiff_t>(place) - 1, now.end(),
                   scores.begin() + static_cast<std::ptrdiff_t>(place) - 1))
      throw ConfigError(fmt::format(
          "[adaptation] no score depends on the tokens from {} on: nothing is proved, and the model does not read them",
          place));
  }
  check_own_token_unread(scorer, tokens, segment);
}

}  // namespace nestgrad
