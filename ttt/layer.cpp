#include "ttt/layer.h"

#include <fmt/format.h>

#include <cmath>

namespace nestgrad::ttt {

namespace {

// Standard deviation of the uniform start of a depthwise convolution with few taps, U(-1/sqrt(taps),
// 1/sqrt(taps)).
Init conv_init(std::int64_t taps) { return Init::normal(1.0 / std::sqrt(3.0 * static_cast<double>(taps))); }

}  // namespace

Tensor linear(Tensor x, Tensor weight) { return matmul(x, weight, {.b = true}); }

Tensor split_heads(Tensor x, std::int64_t heads) {
  return permute(reshape(x, {x.dim(0), x.dim(1), heads, x.dim(2) / heads}), {0, 2, 1, 3});
}

Tensor join_heads(Tensor x) {
  return reshape(permute(x, {0, 2, 1, 3}), {x.dim(0), x.dim(2), x.dim(1) * x.dim(3)});
}

ProjectedViews::ProjectedViews(const Params& params, std::int64_t width)
    : q_(params("q_proj.weight", {width, width})),
      k_(params("k_proj.weight", {width, width})),
      v_(params("v_proj.weight", {width, width})) {}

Task::Joined ProjectedViews::views(Tensor x, Stream&) const {
  return {linear(x, q_), linear(x, k_), linear(x, v_)};
}

SharedQkViews::SharedQkViews(const Params& params, std::int64_t width, std::int64_t kernel, std::string name)
    : qk_(params("q_proj.weight", {width, width})),
      v_(params("v_proj.weight", {width, width})),
      conv_q_(params("conv_q.weight", {width, 1, kernel}, conv_init(kernel))),
      conv_q_bias_(params("conv_q.bias", {width}, Init::zeros())),
      conv_k_(params("conv_k.weight", {width, 1, kernel}, conv_init(kernel))),
      conv_k_bias_(params("conv_k.bias", {width}, Init::zeros())),
      name_(std::move(name)) {}

Task::Joined SharedQkViews::views(Tensor x, Stream& stream) const {
  const Tensor qk = stream.with_history(name_ + ".qk", linear(x, qk_), conv_q_.dim(-1) - 1);
  return {conv1d(qk, conv_q_, conv_q_bias_), conv1d(qk, conv_k_, conv_k_bias_), linear(x, v_)};
}

TTTLayer::TTTLayer(const Params& params, const TTTLayerOptions& options, std::unique_ptr<Task> task,
                   std::unique_ptr<Learner> learner, std::string name)
    : params_(params),
      options_(options),
      task_(std::move(task)),
      learner_(std::move(learner)),
      name_(std::move(name)) {
  if (options_.width % options_.heads)
    throw ConfigError(
        fmt::format("[ttt] width {} is not a multiple of {} heads", options_.width, options_.heads));
  if (options_.width / options_.heads % 2)
    throw ConfigError(fmt::format("[ttt] the head dimension {} must be even for rotary embeddings",
                                  options_.width / options_.heads));
}

Tensor TTTLayer::token_rates(Tensor x) const {
  const std::int64_t heads = options_.heads, width = options_.width;
  const Tensor weight = params_("learnable_ttt_lr_weight", {heads, 1, width});
  const Tensor bias = params_("learnable_ttt_lr_bias", {heads, 1}, Init::zeros());
  const Tensor gate =
      sigmoid(linear(x, reshape(weight, {heads, width})) + reshape(bias, {heads}));  // [batch, time, heads]
  const double scale = options_.base_lr * static_cast<double>(heads) / static_cast<double>(width);
  return reshape(permute(gate * scale, {0, 2, 1}), {x.dim(0), heads, x.dim(1), 1});
}

Tensor TTTLayer::position_rates(DType dtype) const {
  const std::int64_t size = options_.inner.policy.chunk;
  const Tensor place =
      reciprocal(iota(dtype, {size}, 0) + 1.0) + params_("learnable_token_idx", {size}, Init::zeros());
  return max(place, 0.0);
}

Tensor TTTLayer::operator()(Tensor x, Stream& stream) const {
  const Scope scope(name_);
  const DType dtype = x.dtype();
  const std::int64_t time = x.dim(1), size = options_.inner.policy.chunk;
  const Task::Joined joined = task_->views(x, stream);
  Tensor slot;  // stepping: the token's place in its mini-batch
  Tensor positions;
  if (stream.stepping()) {
    slot = positions = stream.counter(name_ + ".slot", size, dtype);
  } else {
    std::vector<double> place;
    for (std::int64_t t = 0; t < time; ++t) place.push_back(static_cast<double>(t % size));
    positions = constant(Array::of(place, {time}, dtype));
  }
  const Views views{rope(split_heads(joined.q, options_.heads), positions, options_.rope_theta),
                    rope(split_heads(joined.k, options_.heads), positions, options_.rope_theta),
                    split_heads(joined.v, options_.heads),
                    {{"rate", token_rates(x)}},
                    position_rates(dtype)};
  const Weights start = for_batch(learner_->init(), x.dim(0));
  Tensor out;
  if (stream.stepping()) {
    out = train_step(*learner_, start, views, slot, options_.inner, stream, name_);
  } else {
    InnerLoopOptions inner = options_.inner;
    inner.track_loss = stream.track_inner_loss;
    const InnerLoopResult r = train_along(*learner_, start, views, inner);
    out = r.output;
    if (inner.track_loss) {
      stream.tap(name_ + ".inner_loss_initial", r.loss_initial);
      stream.tap(name_ + ".inner_loss_before", r.loss_before);
      stream.tap(name_ + ".inner_loss_after", r.loss_after);
    }
  }
  out = layer_norm(join_heads(out), params_("post_norm.weight", {options_.width}, Init::ones()),
                   params_("post_norm.bias", {options_.width}, Init::zeros()));
  if (options_.gate)
    out = gelu_tanh(linear(x, params_("g_proj.weight", {options_.width, options_.width}))) * out;
  return linear(out, params_("o_proj.weight", {options_.width, options_.width}));
}

}  // namespace nestgrad::ttt
