#include "ttt/layer.h"

#include <fmt/format.h>

#include <cmath>

#include "ttt/attention.h"
#include "ttt/slices.h"

namespace nestgrad::ttt {

Tensor places_in_chunks(std::int64_t tokens, std::int64_t chunk, DType dtype) {
  std::vector<double> places;
  for (std::int64_t t = 0; t < tokens; ++t) places.push_back(static_cast<double>(t % chunk));
  return constant(Array::of(places, {tokens}, dtype));
}

Tensor position_rates(Tensor learnable_token_idx) {
  const Tensor place = iota(learnable_token_idx.dtype(), learnable_token_idx.shape(), 0);
  return max(reciprocal(place + 1.0) + learnable_token_idx, 0.0);
}

Tensor token_rates(Tensor raw, double base_lr, std::int64_t head_dim) {
  return sigmoid(raw) * (base_lr / static_cast<double>(head_dim));
}

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
      conv_q_(params("conv_q.weight", {width, 1, kernel}, Init::of_taps(kernel))),
      conv_q_bias_(params("conv_q.bias", {width}, Init::zeros())),
      conv_k_(params("conv_k.weight", {width, 1, kernel}, Init::of_taps(kernel))),
      conv_k_bias_(params("conv_k.bias", {width}, Init::zeros())),
      name_(std::move(name)) {}

Task::Joined SharedQkViews::views(Tensor x, Stream& stream) const {
  const Tensor qk = linear(x, qk_);
  if (stream.is_packed())
    return {stream.conv(name_ + ".q", qk, conv_q_, conv_q_bias_),
            stream.conv(name_ + ".k", qk, conv_k_, conv_k_bias_), linear(x, v_)};
  const Tensor rows = stream.with_history(name_ + ".qk", qk, conv_q_.dim(-1) - 1);
  return {conv1d(rows, conv_q_, conv_q_bias_), conv1d(rows, conv_k_, conv_k_bias_), linear(x, v_)};
}

TTTLayer::TTTLayer(const Params& params, const TTTLayerOptions& options, std::unique_ptr<Task> task,
                   System system, std::string name)
    : params_(params),
      options_(options),
      task_(std::move(task)),
      system_(std::move(system)),
      asked_(std::make_shared<std::map<std::string, Params::Request>>()),
      name_(std::move(name)) {
  check_complete(system_);
  if (!task_) throw ConfigError("[ttt] the layer needs a task, which makes the views of a token; it is null");
  if (!std::isfinite(options_.base_lr))
    throw ConfigError(fmt::format("[ttt] base_lr is {}; it must be finite", options_.base_lr));
  if (options_.attention_window < 0)
    throw ConfigError(fmt::format("[ttt] attention_window is {}; it must be 0 (none) or positive",
                                  options_.attention_window));
  if (options_.heads < 1 || options_.width < 1 || options_.width % options_.heads)
    throw ConfigError(
        fmt::format("[ttt] the width must be a multiple of the number of heads, it is {} for {}",
                    options_.width, options_.heads));
  const std::int64_t dim = options_.width / options_.heads;
  if (dim % 2 && (system_.rotary || system_.rotary_in_sequence || options_.attention_window > 0))
    throw ConfigError(fmt::format("[ttt] the head dimension {} must be even for rotary embeddings", dim));
  sizes_ = {options_.heads, dim, options_.inner.policy.chunk};
  learner_ =
      learner_of(system_, params_.through([whole = params_, asked = asked_](const Params::Request& request) {
        asked->emplace(request.name, request);
        return whole.get(request);
      }),
                 sizes_);
  options_.inner.policy = system_.policy(sizes_);
  if (!options_.inner.policy.causal())
    throw ConfigError(fmt::format("[ttt] {} is not causal ({}): it cannot be a layer of a language model",
                                  system_.name, options_.inner.policy.str()));
  if (options_.inner.policy.chunk == Policy::kWholeSequence && (system_.rotary || system_.position_rates))
    throw ConfigError(
        fmt::format("[ttt] {} counts tokens from the beginning of their chunk, but has no chunks ({})",
                    system_.name, options_.inner.policy.str()));
}

Tensor TTTLayer::rates_of_tokens(Tensor x) const {
  const std::int64_t heads = options_.heads, width = options_.width;
  const Tensor weight = params_("learnable_ttt_lr_weight", {heads, 1, width});
  const Tensor bias = params_("learnable_ttt_lr_bias", {heads, 1}, Init::zeros());
  const Tensor raw =
      linear(x, reshape(weight, {heads, width})) + reshape(bias, {heads});  // [batch, time, heads]
  const Tensor rates = token_rates(raw, options_.base_lr, width / heads);
  return reshape(permute(rates, {0, 2, 1}), {x.dim(0), heads, x.dim(1), 1});
}

Tensor TTTLayer::gate_of(const GateSpec& gate, Tensor x) const {
  const std::int64_t heads = options_.heads, width = options_.width,
                     each = gate.per_feature ? width / heads : 1;
  const Params own = params_.at("gates." + gate.name);
  // One statement each: compilers evaluate operands in orders of their own, and parameters are numbered as they
  // are asked for.
  const Tensor bias =
      own("bias", {heads * each}, gate.drawn_bias.value_or(Init{Init::Kind::constant, gate.bias}));
  const Tensor weight = own("weight", {heads * each, width});
  return gate_from_biased(gate, split_heads(linear(x, weight) + bias, heads));
}

Tensor TTTLayer::attention_branch(const Task::Joined& joined, Stream& stream) const {
  const AttentionOptions options{.window = options_.attention_window, .places = stream.places()};
  const std::string name = name_ + ".window";
  const Tensor positions = stream.positions(name + ".position", joined.q);
  const Tensor q = rope(split_heads(joined.q, options_.heads), positions, options_.rope_theta),
               k = rope(split_heads(joined.k, options_.heads), positions, options_.rope_theta),
               v = split_heads(joined.v, options_.heads);
  return join_heads(attention_along(q, k, v, options, stream, name));
}

// What is learnt token by token here and read token by token in a Decoder must be the same.
void TTTLayer::require_causal(const Weights& start, const Spec& q) const {
  const Policy& policy = options_.inner.policy;
  const auto refuse = [&](const std::string& why) {
    throw ConfigError(fmt::format("[ttt] {} is not causal: it cannot be a layer of a language model: {}",
                                  system_.name, why));
  };
  if (const std::string why = why_not_causal(*learner_, policy, start, q); !why.empty()) refuse(why);
  const std::int64_t time = std::max<std::int64_t>(2, policy.chunk_of(q.shape[2]));
  const std::string why =
      why_tokens_meet(system_, {2, options_.heads, q.shape[3], time, policy.chunk}, q.dtype);
  if (!why.empty())
    refuse("its prepare or a gate's shape does not treat each token by itself: " + why +
           ". Let tokens meet in the layer's Task, which is given the stream");
}

Views TTTLayer::views_of(Tensor x, const Task::Joined& joined, Tensor slot, Stream& stream) const {
  Views views{split_heads(joined.q, options_.heads),
              split_heads(joined.k, options_.heads),
              split_heads(joined.v, options_.heads),
              {},
              {}};
  const auto rotate = [&](Tensor positions) {
    views.q = rope(views.q, positions, options_.rope_theta);
    views.k = rope(views.k, positions, options_.rope_theta);
  };
  if (system_.rotary)
    rotate(slot.defined() ? slot
                          : stream.own_tokens(places_in_chunks(stream.all_tokens(x.dim(1)),
                                                               options_.inner.policy.chunk, x.dtype())));
  if (system_.rotary_in_sequence) rotate(stream.positions(name_ + ".position", joined.q));
  if (system_.position_rates) {
    views.gates["rate"] = rates_of_tokens(x);
    views.position =
        position_rates(params_("learnable_token_idx", {options_.inner.policy.chunk}, Init::zeros()));
  }
  for (const GateSpec& gate : system_.gates) views.gates[gate.name] = gate_of(gate, x);
  if (system_.prepare) system_.prepare(views);
  return views;
}

Task::Joined TTTLayer::delayed(const Task::Joined& joined, Stream& stream) const {
  return {joined.q, stream.before(name_ + ".k", joined.k), joined.v};
}

Views TTTLayer::of_own_heads(const Views& views, const Stream& stream) const {
  Views out = views;
  for (Tensor* one : {&out.q, &out.k, &out.v}) *one = stream.whole_time(name_, *one);
  for (auto& [name, gate] : out.gates) gate = stream.whole_time(name_, gate);
  if (out.starts.defined()) out.starts = stream.of_all_tokens(out.starts, 2);
  return out;
}

// It asks for parameters of fewer heads: the axis along which they are shorter than those that the whole learner asked for
// is that of the heads (why_heads_are_no_parts).
std::unique_ptr<Learner> TTTLayer::learner_of_own_heads(const ProcessGroup& ranks) const {
  const auto part = [whole = params_, asked = asked_, ranks](const Params::Request& request) {
    const Params::Request& of_all = asked->at(request.name);
    const Shape &all = of_all.shape, &some = request.shape;
    Tensor out = whole.get(of_all);
    for (std::size_t a = 0; a < all.size(); ++a)
      if (all[a] != some[a])
        out = slice(out, static_cast<int>(a), ranks.rank() * some[a], (ranks.rank() + 1) * some[a]);
    return out;
  };
  return learner_of(system_, params_.through(part), {sizes_.heads / ranks.size(), sizes_.dim, sizes_.chunk});
}

Tensor TTTLayer::learnt_in_slices(const Views& views, Stream& stream) const {
  const ProcessGroup& ranks = stream.ranks();
  const Weights start = for_batch(learner_->init(), views.q.dim(0));
  const SliceForm form = choose_slices(system_, sizes_, *learner_, start, views, options_.inner, ranks.size(),
                                       name_, stream.slice_form())
                             .form;
  if (form == SliceForm::heads)
    return stream.whole_heads(learnt(*learner_of_own_heads(ranks), of_own_heads(views, stream), stream));
  if (stream.track_inner_loss || stream.tap_inner_loops)
    throw ConfigError(fmt::format(
        "[ttt] {}: what happens inside is not seen where slices share no heads ({})", name_, name(form)));
  return train_along_slices(*learner_, start, views, options_.inner, ranks, form);
}

Tensor TTTLayer::learnt(const Learner& learner, const Views& views, Stream& stream) const {
  InnerLoopOptions inner = options_.inner;
  inner.track_loss = stream.track_inner_loss;
  const InnerLoopResult r = train_along(learner, for_batch(learner.init(), views.q.dim(0)), views, inner);
  if (inner.track_loss) {
    stream.tap(name_ + ".inner_loss_initial", r.loss_initial);
    stream.tap(name_ + ".inner_loss_before", r.loss_before);
    stream.tap(name_ + ".inner_loss_after", r.loss_after);
  }
  if (!stream.tap_inner_loops) return r.output;
  const Tensor answers = probe(r.output);
  stream.tap(name_ + ".q", views.q);
  stream.tap(name_ + ".k", views.k);
  stream.tap(name_ + ".v", views.v);
  for (const auto& [gate, rows] : views.gates) stream.tap(name_ + ".gates." + gate, rows);
  if (views.position.defined()) stream.tap(name_ + ".position", views.position);
  stream.tap(name_ + ".answers", answers);
  return answers;
}

Tensor TTTLayer::operator()(Tensor x, Stream& stream) const {
  moved_.check("ttt", "layer");
  const Scope scope(name_);
  const Task::Joined joined = task_->views(x, stream);
  Tensor slot;  // stepping: the token's place in its chunk
  if (stream.stepping()) slot = stream.counter(name_ + "/slot", options_.inner.policy.chunk, x.dtype());
  Views views = views_of(x, system_.delayed_keys ? delayed(joined, stream) : joined, slot, stream);
  if (stream.is_packed()) {
    views.starts = reshape(equal(cast(stream.places(), x.dtype()), 0.0), {x.dim(0), 1, x.dim(1), 1});
    views.alignment = stream.alignment();
  }
  const Weights start = for_batch(learner_->init(), x.dim(0));
  require_causal(start, views.q.spec());
  Tensor out;
  if (stream.stepping()) {
    out = train_step(*learner_, start, views, slot, options_.inner, stream, name_);
  } else if (stream.is_cut()) {
    out = learnt_in_slices(views, stream);
  } else {
    out = learnt(*learner_, views, stream);
  }
  if (out.dim(-1) != sizes_.dim)
    throw ShapeError(fmt::format(
        "[ttt] {}: predict() gives answers of {} features, and a head of the layer has {} (the width {} by {} "
        "heads); let predict() give as many as a head has",
        system_.name, out.dim(-1), sizes_.dim, options_.width, options_.heads));
  const Tensor shift = params_("post_norm.bias", {options_.width}, Init::zeros());
  const Tensor gain = params_("post_norm.weight", {options_.width}, Init::ones());
  out = layer_norm(join_heads(out), gain, shift);
  if (options_.attention_window > 0) out = out + attention_branch(joined, stream);
  if (options_.gate)
    out = gelu_tanh(linear(x, params_("g_proj.weight", {options_.width, options_.width}))) * out;
  return linear(out, params_("o_proj.weight", {options_.width, options_.width}));
}

}  // namespace nestgrad::ttt
