#include "ttt/vision.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/core/index.h"
#include "ttt/attention.h"
#include "ttt/effective_attention.h"
#include "ttt/layer.h"
#include "ttt/learners/vittt.h"

namespace nestgrad::ttt {

namespace {

constexpr double kTokenEps = 1e-6;  // of norms per token

Tensor affine(Tensor x, const Params& params, std::int64_t out, double stddev) {
  const Init init = stddev > 0 ? Init::normal(stddev) : Init::lecun(x.dim(-1));
  const Tensor weight = params("weight", {out, x.dim(-1)}, init);
  return linear(x, weight) + params("bias", {out}, Init::zeros());
}

// x cut along its last axis into these widths.
std::vector<Tensor> cut(Tensor x, const std::vector<std::int64_t>& widths) {
  std::vector<Tensor> out;
  std::int64_t from = 0;
  for (std::int64_t width : widths) {
    out.push_back(slice(x, -1, from, from + width));
    from += width;
  }
  return out;
}

void check_sizes(std::string_view what, Tensor x, std::int64_t width, std::int64_t heads) {
  if (heads < 1 || width < 1 || width % heads)
    throw ConfigError(fmt::format("[{}] width {} is not a multiple of {} heads", what, width, heads));
  if (x.rank() != 3 || x.dim(2) != width)
    throw ShapeError(
        fmt::format("[{}] x is {}, it must be [batch, tokens, {}]", what, to_string(x.spec()), width));
}

void check_image(std::string_view what, Tensor x, std::int64_t height, std::int64_t width) {
  if (!is_grid(x.dim(1), height, width))
    throw ShapeError(fmt::format("[{}] x is {}, whose {} tokens are no image of {} x {}", what,
                                 to_string(x.spec()), x.dim(1), height, width));
}

// A learner and what it is given of all tokens.
struct HeadLearner {
  HeadLearner(Composed of, Tensor q, Tensor k, Tensor v) : learner(std::move(of)) {
    views.q = q;
    views.k = k;
    views.v = v;
  }
  InnerLoopResult run(FormChoice form) const {
    InnerLoopOptions options{.policy = policy, .form = form};
    return train_along(learner, for_batch(learner.init(), views.q.dim(0)), views, options);
  }
  // by_value: the derivative of a token's loss by its prediction is this times its value.
  Tensor map(double by_value) const {
    return by_value *
           effective_attention(learner, for_batch(learner.init(), views.q.dim(0)), views, policy).matrix;
  }

  Composed learner;
  Views views;
  Policy policy = all_tokens_at_once();
};

// How a learner is made of parameters, once more.
using MadeOf = std::function<Composed(const Params& params)>;
VisionLoop opened(const HeadLearner& heads, Tensor answers, MadeOf made_of) {
  return {[made_of = std::move(made_of)](const Params& p) { return std::make_unique<Composed>(made_of(p)); },
          heads.policy, heads.views, answers};
}

// ---- ViT^3 ----

InnerOptimizer step_of(const Vittt& o) {
  return o.normalize ? vittt_optimizer(o.rate) : InnerOptimizer().scale(o.rate);
}

// q, k and v of all heads joined, then those of the convolution.
std::vector<Tensor> vittt_views(Tensor x, const Params& params, const Vittt& o) {
  const std::int64_t width = o.width, dim = width / o.heads;
  std::vector<std::int64_t> widths{width, width, width};
  if (o.convolution) widths.insert(widths.end(), {dim, dim, dim});
  std::vector<Tensor> views =
      cut(affine(x, params.at("qkv"), 3 * (o.convolution ? width + dim : width), o.projection_std), widths);
  if (o.query_is_key)
    for (std::size_t q = 0; q < views.size(); q += 3) views[q] = views[q + 1];
  return views;
}

Composed vittt_learner(const Params& params, const Vittt& o) {
  const std::int64_t heads = o.heads, dim = o.width / heads;
  const auto weight = [&](const char* name) {
    return reshape(params(name, {1, heads, dim, dim}, Init::lecun(dim)), {heads, dim, dim});
  };
  const bool single = o.unit == VitttUnit::linear;
  const std::vector<Tensor> start =
      single ? std::vector{weight("w1")} : std::vector{weight("w1"), weight("w2")};
  const Model model = starting_from(start, [&](const Params& p) {
    const ModelSizes sizes{heads, dim, 0, dim};
    return single ? linear(p, sizes) : glu(p, sizes);
  });
  return {model, inner_product(o.scale), step_of(o)};
}

HeadLearner vittt_unit(const std::vector<Tensor>& views, const Params& params, const Vittt& o) {
  HeadLearner out(vittt_learner(params, o), split_heads(views[0], o.heads), split_heads(views[1], o.heads),
                  split_heads(views[2], o.heads));
  if (o.unit == VitttUnit::last_layer) out.policy.trained = {"W1"};
  return out;
}

void check_vittt(Tensor x, const Vittt& o) {
  check_sizes("vittt", x, o.width, o.heads);
  if (o.convolution) check_image("vittt", x, o.height, o.image_width);
}

}  // namespace

VisionResult vittt_block(Tensor x, const Params& params, const Vittt& o) {
  const Scope scope("vittt");
  check_vittt(x, o);
  const std::int64_t dim = o.width / o.heads;
  const std::vector<Tensor> views = vittt_views(x, params, o);
  const HeadLearner unit = vittt_unit(views, params, o);
  const InnerLoopResult read = unit.run(o.form);
  Tensor out = join_heads(read.output);
  if (o.convolution) {
    const Tensor kernel = transpose(reshape(params("w3", {dim, 1, 3, 3}, Init::lecun(9)), {1, dim, 9}));
    const Model model = starting_from(
        {kernel}, [&](const Params& p) { return depthwise3x3(p, 1, dim, o.height, o.image_width); });
    const HeadLearner seen(Composed(model, inner_product(o.scale), step_of(o)), split_heads(views[3], 1),
                           split_heads(views[4], 1), split_heads(views[5], 1));
    out = concat({out, join_heads(seen.run(FormChoice::automatic).output)}, -1);
  }
  return {affine(out, params.at("proj"), o.width, o.projection_std), read.plan,
          opened(unit, read.output, [o](const Params& p) { return vittt_learner(p, o); })};
}

Tensor vittt_attention_map(Tensor x, const Params& params, const Vittt& o) {
  const Scope scope("vittt");
  check_vittt(x, o);
  return vittt_unit(vittt_views(x, params, o), params, o).map(-o.scale);
}

// ---- T^5 ----

namespace {

// t5_model() that starts from parameters of the published names: w1, .., in the order in which the paper's
// code applies them.
Model fast_model(const Params& params, const T5Attention& o) {
  const std::int64_t heads = o.heads, dim = o.width / o.heads, hidden = o.hidden ? o.hidden : dim;
  const auto w = [&](const char* name, std::int64_t in, std::int64_t out) {
    return reshape(params(name, {1, heads, in, out}, Init::lecun(in)), {heads, in, out});
  };
  std::vector<Tensor> start;
  switch (o.model) {
    case FastModel::gated:
      start = {w("w1", dim, dim)};
      break;
    case FastModel::two_layers:
      start = {w("w1", dim, hidden), w("w2", hidden, dim)};
      break;
    case FastModel::three_layers:
      start = {w("w1", dim, hidden), w("w2", hidden, hidden), w("w3", hidden, dim)};
      break;
    case FastModel::swiglu:
      start = {w("w1", dim, hidden), w("w2", hidden, dim), w("w3", dim, hidden)};
      break;
  }
  return starting_from(start, [&](const Params& p) { return t5_model(o.model, p, heads, dim, hidden); });
}

// x [batch, tokens, width] and its convolution as an image, added up.
Tensor with_convolved(Tensor x, const Params& params, const T5Attention& o) {
  const Tensor image = reshape(x, {x.dim(0), o.height, o.image_width, o.width});
  const Tensor weight = params("weight", {o.width, 1, 3, 3}, Init::of_taps(9));
  return x + reshape(depthwise_conv3x3(image, weight, params("bias", {o.width}, Init::zeros())), x.shape());
}

// k [batch, heads, tokens, dim].
Tensor normalised(Tensor k, const T5Attention& o) {
  switch (o.key_norm) {
    case KeyNorm::none:
      return k;
    case KeyNorm::rms:
      return rms_norm(k, 1.0, kTokenEps);
    case KeyNorm::layer:
      return layer_norm(k, 1.0, 0.0, kTokenEps);
    case KeyNorm::instance:
      return instance_norm(k, o.norm_eps);
    case KeyNorm::centred:
      return k - mean(k, {-2}, kKeep);
    case KeyNorm::not_centred:
      break;
  }
  const Tensor centred = k - mean(k, {-2}, kKeep);
  return k * rsqrt(mean(square(centred), {-2}, kKeep) + o.norm_eps);
}

std::vector<Tensor> t5_views(Tensor x, const Params& params, const T5Attention& o) {
  return cut(affine(x, params.at("qkv"), 3 * o.width, o.projection_std), {o.width, o.width, o.width});
}

Composed t5_learner(const Params& params, const T5Attention& o) {
  const std::int64_t dim = o.width / o.heads;
  const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
  const InnerOptimizer step = InnerOptimizer().scale(o.squared_error ? scale * o.rate : o.rate);
  return {fast_model(params, o), o.squared_error ? half_squared_error() : t5_loss(dim), step};
}

// views: q, k, v as projected, heads joined.
HeadLearner t5_heads(const std::vector<Tensor>& views, const Params& params, const T5Attention& o) {
  Tensor q = views[0], k = views[1], v = views[2];
  if (o.rescale_qk) {
    const Tensor gain = params("qk_scale_ttt", {1, 1, o.width, 2}, Init::ones()),
                 shift = params("qk_offset_ttt", {1, 1, o.width, 2}, Init::zeros());
    const auto of = [&](Tensor pair, std::int64_t i) {
      return reshape(slice(pair, 3, i, i + 1), {1, 1, o.width});
    };
    q = q * of(gain, 0) + of(shift, 0);
    k = k * of(gain, 1) + of(shift, 1);
  }
  k = join_heads(normalised(split_heads(k, o.heads), o));
  if (o.convolutions) {
    q = with_convolved(q, params.at("q_conv2d"), o);
    k = with_convolved(k, params.at("k_conv2d"), o);
  }
  if (o.value_convolution) v = with_convolved(v, params.at("v_conv2d"), o);
  return {t5_learner(params, o), split_heads(q, o.heads), split_heads(k, o.heads), split_heads(v, o.heads)};
}

void check_t5(Tensor x, const T5Attention& o) {
  check_sizes("t5", x, o.width, o.heads);
  if (o.convolutions || o.value_convolution || o.neighbourhood > 0)
    check_image("t5", x, o.height, o.image_width);
  if (o.half_neighbourhood && o.neighbourhood < 1)
    throw ConfigError("[t5] half_neighbourhood is the mean with what a neighbourhood says; give its size");
}

}  // namespace

VisionResult t5_attention(Tensor x, const Params& params, const T5Attention& o) {
  const Scope scope("t5");
  check_t5(x, o);
  const std::vector<Tensor> views = t5_views(x, params, o);
  const HeadLearner learner = t5_heads(views, params, o);
  const InnerLoopResult read = learner.run(o.form);
  Tensor out = read.output;
  if (o.neighbourhood > 0) {
    const auto heads = [&](Tensor joined) { return split_heads(joined, o.heads); };
    out = out + neighbourhood_attention_2d(heads(views[0]), heads(views[1]), heads(views[2]), o.height,
                                           o.image_width, o.neighbourhood);
    if (o.half_neighbourhood) out = 0.5 * out;
  }
  return {affine(join_heads(out), params.at("proj"), o.width, o.projection_std), read.plan,
          opened(learner, read.output, [o](const Params& p) { return t5_learner(p, o); })};
}

Tensor t5_attention_map(Tensor x, const Params& params, const T5Attention& o) {
  const Scope scope("t5");
  check_t5(x, o);
  const double scale = 1.0 / std::sqrt(static_cast<double>(o.width / o.heads));
  return t5_heads(t5_views(x, params, o), params, o).map(o.squared_error ? -1 : -scale);
}

}  // namespace nestgrad::ttt
