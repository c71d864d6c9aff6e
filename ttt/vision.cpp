#include "ttt/vision.h"

#include <fmt/format.h>

#include <cmath>

#include "ttt/attention.h"
#include "ttt/layer.h"
#include "ttt/learners/vittt.h"

namespace nestgrad::ttt {

namespace {

Init lecun(std::int64_t in) { return Init::normal(1.0 / std::sqrt(static_cast<double>(in))); }

Tensor affine(Tensor x, const Params& params, std::int64_t out) {
  const Tensor weight = params("weight", {out, x.dim(-1)}, lecun(x.dim(-1)));
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
  if (height < 1 || width < 1 || x.dim(1) != height * width)
    throw ShapeError(fmt::format("[{}] x is {}, an image of {} x {} has {} tokens", what, to_string(x.spec()),
                                 height, width, height * width));
}

// A model of ttt/compose.h that starts from these weights [heads, ..], in its own order, whatever they are
// called there.
Model starting_from(const std::vector<Tensor>& start, const std::function<Model(const Params&)>& make) {
  Graph scratch;  // for the parameters that it would start from otherwise
  ParamTable unused(scratch, start[0].dtype());
  Model out = make(Params(unused));
  out.start = out.start.with(start);
  return out;
}

InnerLoopResult learn_then_read(const Learner& learner, Tensor q, Tensor k, Tensor v, FormChoice form) {
  return train_along(learner, for_batch(learner.init(), q.dim(0)), {q, k, v, {}, {}},
                     {.policy = all_tokens_at_once(), .form = form});
}

}  // namespace

VisionResult vittt_block(Tensor x, const Params& params, const Vittt& o) {
  const Scope scope("vittt");
  check_sizes("vittt", x, o.width, o.heads);
  check_image("vittt", x, o.height, o.image_width);
  const std::int64_t heads = o.heads, width = o.width, dim = width / heads;
  const std::vector<Tensor> views =
      cut(affine(x, params.at("qkv"), 3 * (width + dim)), {width, width, width, dim, dim, dim});
  const InnerOptimizer step = vittt_optimizer(o.rate);

  const auto weight = [&](const char* name) {
    return reshape(params(name, {1, heads, dim, dim}, lecun(dim)), {heads, dim, dim});
  };
  const Composed unit(starting_from({weight("w1"), weight("w2")},
                                    [&](const Params& p) {
                                      return glu(p, {heads, dim, 0, dim});
                                    }),
                      inner_product(o.scale), step);
  const InnerLoopResult read = learn_then_read(
      unit, split_heads(views[0], heads), split_heads(views[1], heads), split_heads(views[2], heads), o.form);

  const Tensor kernel = transpose(reshape(params("w3", {dim, 1, 3, 3}, lecun(9)), {1, dim, 9}));
  const Composed convolution(
      starting_from({kernel},
                    [&](const Params& p) { return depthwise3x3(p, 1, dim, o.height, o.image_width); }),
      inner_product(o.scale), step);
  const InnerLoopResult seen =
      learn_then_read(convolution, split_heads(views[3], 1), split_heads(views[4], 1),
                      split_heads(views[5], 1), FormChoice::automatic);

  return {affine(concat({join_heads(read.output), join_heads(seen.output)}, -1), params.at("proj"), width),
          read.plan};
}

namespace {

// t5_model() that starts from parameters of the published names: w1, .., in the order in which the paper's
// code applies them.
Model fast_model(const Params& params, const T5Attention& o) {
  const std::int64_t heads = o.heads, dim = o.width / o.heads, hidden = o.hidden ? o.hidden : dim;
  const auto w = [&](const char* name, std::int64_t in, std::int64_t out) {
    return reshape(params(name, {1, heads, in, out}, lecun(in)), {heads, in, out});
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

// x [batch, tokens, width] as an image, convolved.
Tensor convolved(Tensor x, const Params& params, const T5Attention& o) {
  const Tensor image = reshape(x, {x.dim(0), o.height, o.image_width, o.width});
  const Tensor weight = params("weight", {o.width, 1, 3, 3}, lecun(9));
  return reshape(depthwise_conv3x3(image, weight, params("bias", {o.width}, Init::zeros())), x.shape());
}

}  // namespace

VisionResult t5_attention(Tensor x, const Params& params, const T5Attention& o) {
  const Scope scope("t5");
  check_sizes("t5", x, o.width, o.heads);
  if (o.convolutions || o.neighbourhood > 0) check_image("t5", x, o.height, o.image_width);
  const std::int64_t width = o.width;
  std::vector<Tensor> views = cut(affine(x, params.at("qkv"), 3 * width), {width, width, width});
  if (o.convolutions) {
    views[0] = convolved(views[0], params.at("conv_q"), o);
    views[1] = convolved(views[1], params.at("conv_k"), o);
  }
  const Tensor q = split_heads(views[0], o.heads), k = split_heads(views[1], o.heads),
               v = split_heads(views[2], o.heads);
  const Composed learner(fast_model(params, o), t5_loss(q.dim(-1)), InnerOptimizer().scale(o.rate));
  const InnerLoopResult read = learn_then_read(learner, q, instance_norm(k, o.norm_eps), v, o.form);
  Tensor out = read.output;
  if (o.neighbourhood > 0)
    out = out + neighbourhood_attention_2d(q, k, v, o.height, o.image_width, o.neighbourhood);
  return {affine(join_heads(out), params.at("proj"), width), read.plan};
}

}  // namespace nestgrad::ttt
