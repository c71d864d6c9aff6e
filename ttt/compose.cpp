#include "ttt/compose.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/core/index.h"
#include "ops/accumulate.h"

namespace nestgrad::ttt {

namespace {

// x + LN(y), with a gain and a shift per head that do not learn in the inner loop.
std::function<Tensor(Tensor x, Tensor y)> residual_norm_of(const Params& params, std::int64_t heads,
                                                           std::int64_t dim) {
  const Tensor gain = reshape(params("ttt_norm_weight", {heads, dim}, Init::ones()), {heads, 1, dim}),
               shift = reshape(params("ttt_norm_bias", {heads, dim}, Init::zeros()), {heads, 1, dim});
  return [=](Tensor x, Tensor y) { return x + layer_norm(y, gain, shift); };
}

}  // namespace

Model linear(const Params& params, const ModelSizes& s, LinearOptions options) {
  std::vector<FastWeight> start{matrix("W", params("W", {s.heads, s.in, s.out}))};
  if (options.bias) start.push_back(row("b", params("b", {s.heads, 1, s.out}, Init::zeros())));
  const auto affine = [bias = options.bias](const Weights& w, Tensor x) {
    const Tensor y = matmul(x, w["W"]);
    return bias ? y + w["b"] : y;
  };
  const std::string text = options.bias ? "x W + b" : "x W";
  if (!options.residual_norm) return {text, Weights(std::move(start)), affine};
  const auto wrap = residual_norm_of(params, s.heads, s.out);
  return {fmt::format("x + LN({})", text), Weights(std::move(start)),
          [=](const Weights& w, Tensor x) { return wrap(x, affine(w, x)); }};
}

Model mlp(const Params& params, std::int64_t heads, const std::vector<std::int64_t>& widths,
          const std::function<Tensor(Tensor)>& activation, const std::string& activation_name, bool bias,
          bool residual_norm) {
  if (widths.size() < 2)
    throw ConfigError(
        fmt::format("[mlp] {} widths are given; an input and an output are at least two", widths.size()));
  if (widths.size() > 2) require_function("mlp", "the activation", activation);
  const std::size_t layers = widths.size() - 1;
  std::vector<FastWeight> start;
  std::string text = "x";
  for (std::size_t i = 1; i <= layers; ++i) {
    const std::string name = fmt::format("W{}", i);
    start.push_back(
        matrix(name, params(name, {heads, widths[i - 1], widths[i]}, Init::lecun(widths[i - 1]))));
    text = fmt::format("{} {}", text, name);
    if (bias) {
      start.push_back(
          row(fmt::format("b{}", i), params(fmt::format("b{}", i), {heads, 1, widths[i]}, Init::zeros())));
      text = fmt::format("{} + b{}", text, i);
    }
    if (i < layers) text = fmt::format("{}({})", activation_name, text);
  }
  const auto f = [=](const Weights& w, Tensor x) {
    for (std::size_t i = 1; i <= layers; ++i) {
      x = matmul(x, w[fmt::format("W{}", i)]);
      if (bias) x = x + w[fmt::format("b{}", i)];
      if (i < layers) x = activation(x);
    }
    return x;
  };
  if (!residual_norm) return {text, Weights(std::move(start)), f};
  const auto wrap = residual_norm_of(params, heads, widths.back());
  return {fmt::format("x + LN({})", text), Weights(std::move(start)),
          [=](const Weights& w, Tensor x) { return wrap(x, f(w, x)); }};
}

Model swiglu(const Params& params, const ModelSizes& s) {
  const auto start = [&](const std::string& name, std::int64_t in, std::int64_t out) {
    if (s.rank == 0) return matrix(name, params(name, {s.heads, in, out}, Init::lecun(in)));
    const Tensor right = params(name + ".right", {s.heads, s.rank, out}, Init::lecun(s.rank));
    return matrix(name, matmul(params(name + ".left", {s.heads, in, s.rank}, Init::lecun(in)), right));
  };
  return {"(silu(x W0) * (x W2)) W1",
          {start("W0", s.in, s.hidden), start("W1", s.hidden, s.out), start("W2", s.in, s.hidden)},
          [](const Weights& w, Tensor x) {
            return matmul(silu(matmul(x, w["W0"])) * matmul(x, w["W2"]), w["W1"]);
          }};
}

Model glu(const Params& params, const ModelSizes& s) {
  return {"(x W1) * silu(x W2)",
          {matrix("W1", params("W1", {s.heads, s.in, s.out}, Init::lecun(s.in))),
           matrix("W2", params("W2", {s.heads, s.in, s.out}, Init::lecun(s.in)))},
          [](const Weights& w, Tensor x) { return matmul(x, w["W1"]) * silu(matmul(x, w["W2"])); }};
}

Model gated(const Params& params, const ModelSizes& s) {
  return {"silu(x W) * x",
          {matrix("W", params("W", {s.heads, s.in, s.out}, Init::lecun(s.in)))},
          [](const Weights& w, Tensor x) { return silu(matmul(x, w["W"])) * x; }};
}

Model depthwise3x3(const Params& params, std::int64_t heads, std::int64_t dim, std::int64_t height,
                   std::int64_t width) {
  return {"3x3 depthwise convolution",
          {matrix("kernel", params("kernel", {heads, 9, dim}, Init::normal(1.0 / 3.0)))},
          [=](const Weights& w, Tensor x) {
            if (!is_grid(x.dim(-2), height, width))
              throw ShapeError(fmt::format("[depthwise3x3] rows are {}; their tokens are no image of {} x {}",
                                           to_string(x.spec()), height, width));
            Shape image = x.shape();
            image[image.size() - 2] = height;
            image.insert(image.end() - 1, width);
            const Tensor padded = pad(pad(reshape(x, image), -3, 1, 1), -2, 1, 1);
            Tensor y;
            for (std::int64_t tap = 0; tap < 9; ++tap) {
              const Tensor window =
                  slice(slice(padded, -3, tap / 3, tap / 3 + height), -2, tap % 3, tap % 3 + width);
              const Tensor part = reshape(window, x.shape()) * slice(w["kernel"], -2, tap, tap + 1);
              accumulate(y, part);
            }
            return y;
          }};
}

Model starting_from(const std::vector<Tensor>& start, const std::function<Model(const Params&)>& make) {
  require_function("starting_from", "what makes the model", make);
  if (start.empty())
    throw ConfigError("[starting_from] there are no weights to start from; give those of the model");
  check_defined("starting_from", "weight", start, Loc::current());
  Graph scratch;  // for the parameters that it would start from otherwise
  ParamTable unused(scratch, start.at(0).dtype());
  Model out = make(Params(unused));
  if (start.size() != out.start.size())
    throw ConfigError(fmt::format(
        "[starting_from] the model '{}' has {} weights, and is to start from {}; give one for each", out.text,
        out.start.size(), start.size()));
  out.start = out.start.with(start);
  return out;
}

Model side_by_side(std::vector<Model> models, std::vector<std::int64_t> widths) {
  if (models.size() != widths.size() || models.empty())
    throw ConfigError(fmt::format("[side_by_side] {} models need as many widths, there are {}", models.size(),
                                  widths.size()));
  for (const Model& model : models)
    require_function("side_by_side", "what a model computes, Model::f,", model.f);
  std::vector<FastWeight> all;
  std::string text;
  for (std::size_t m = 0; m < models.size(); ++m) {
    text += fmt::format("{}{}", m ? " | " : "", models[m].text);
    for (std::size_t i = 0; i < models[m].start.size(); ++i) {
      FastWeight w = models[m].start.at(i);
      w.name = fmt::format("{}.{}", m, w.name);
      all.push_back(w);
    }
  }
  return {text, Weights(std::move(all)),
          [models = std::move(models), widths = std::move(widths)](const Weights& w, Tensor x) {
            std::vector<Tensor> parts;
            std::int64_t from = 0;
            for (std::size_t m = 0; m < models.size(); ++m) {
              std::vector<Tensor> own, held;
              for (std::size_t i = 0; i < models[m].start.size(); ++i) {
                const std::string name = fmt::format("{}.{}", m, models[m].start.at(i).name);
                own.push_back(w[name]);
                held.push_back(w.held(name));
              }
              parts.push_back(models[m].f(models[m].start.with(own).with_held(held),
                                          slice(x, -1, from, from + widths[m])));
              from += widths[m];
            }
            return concat(parts, -1);
          }};
}

namespace {

Tensor per_token(Tensor x) { return sum(x, {-1}, kKeep); }

// Of losses that compare them so: an axis of one number is not spread over the other's features without a word.
decltype(InnerLoss::f) feature_by_feature(decltype(InnerLoss::f) f) {
  return [f = std::move(f)](Tensor predicted, Tensor v) {
    check_features(predicted, v);
    return f(predicted, v);
  };
}

}  // namespace

Composed::Composed(Model model, InnerLoss loss, InnerOptimizer optimizer)
    : model_(std::move(model)), loss_(std::move(loss)), optimizer_(std::move(optimizer)) {
  require_function("composed", "what the model computes, Model::f,", model_.f);
  require_function("composed", "what the loss computes, InnerLoss::f,", loss_.f);
}

InnerLoss half_squared_error() {
  return {"1/2 |f(k) - v|^2",
          feature_by_feature([](Tensor p, Tensor v) { return 0.5 * per_token(square(p - v)); })};
}

InnerLoss squared_error() {
  return {"|f(k) - v|^2", feature_by_feature([](Tensor p, Tensor v) { return per_token(square(p - v)); })};
}

InnerLoss mean_squared_error() {
  return {"|f(k) - v|^2 / dim",
          feature_by_feature([](Tensor p, Tensor v) { return mean(square(p - v), {-1}, kKeep); })};
}

InnerLoss inner_product(double scale) {
  return {scale == 1 ? "-<f(k), v>" : fmt::format("-{:.4g} <f(k), v>", scale),
          feature_by_feature([=](Tensor p, Tensor v) {
            return -(scale == 1 ? per_token(p * v) : scale * per_token(p * v));
          })};
}

InnerLoss huber(double delta) {
  if (!(delta > 0)) throw ConfigError(fmt::format("[huber] delta must be positive, it is {}", delta));
  return {fmt::format("Huber, delta {}", delta), feature_by_feature([=](Tensor p, Tensor v) {
            const Tensor apart = p - v, inside = max(min(apart, delta), -delta);
            return per_token(inside * (apart - 0.5 * inside));
          })};
}

InnerLoss lp(double power) {
  if (!(power > 1)) throw ConfigError(fmt::format("[lp] the power must be above 1, it is {}", power));
  const bool even = std::fmod(power, 2) == 0;
  return {fmt::format("sum |f(k) - v|^{}", power), feature_by_feature([=](Tensor p, Tensor v) {
            // An even power is one of a square, without a kink. |x| to another never sees zero; there value and
            // derivatives are zero.
            if (even) return per_token(pow(square(p - v), power / 2));
            const Tensor size = abs(p - v), none = equal(size, 0.0);
            return per_token(select(none, size, pow(select(none, 1.0 + zero_like(size), size), power)));
          })};
}

InnerLoss cosine(double eps) {
  return {"1 - cos(f(k), v)", feature_by_feature([=](Tensor p, Tensor v) {
            return 1.0 -
                   per_token(p * v) * rsqrt(per_token(square(p)) + eps) * rsqrt(per_token(square(v)) + eps);
          })};
}

InnerLoss cross_entropy_with() {
  return {"cross-entropy of softmax(f(k)) with v",
          feature_by_feature([](Tensor p, Tensor v) { return -per_token(v * log_softmax(p, -1)); })};
}

}  // namespace nestgrad::ttt
