#include "models/vision/view_synthesis.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "models/traced_model.h"
#include "models/vision/layers.h"
#include "models/vision/patches.h"
#include "ops/numerics/functions.h"
#include "ttt/attention.h"
#include "ttt/layer.h"
#include "ttt/learners/lact.h"

namespace nestgrad::vision {

namespace {

constexpr double kNormEps = 1e-5;                    // of layer norms, of the norm of answers and of lengths
constexpr double kQueryEps = 1.1920928955078125e-7;  // of the norms of q and k in attention: 2^-23
constexpr double kStart = 0.02;                      // standard deviation of linear maps

struct Row {
  std::string_view name;
  ViewLearner (*make)();
};

// Each rung is the one before, without one part more.
ViewLearner rung(int n) {
  ViewLearner out;
  out.only_last = n >= 1 && n < 3;
  out.weight_norm = n < 2;
  out.single_layer = n >= 3;
  out.token_rates = n < 4;
  out.muon = n < 6;
  return out;
}

constexpr Row kLearners[] = {
    {"baseline", [] { return rung(0); }},
    {"off", [] { return ViewLearner{.update = false}; }},
    {"v1", [] { return rung(1); }},
    {"v2", [] { return rung(2); }},
    {"v3", [] { return rung(3); }},
    {"v4", [] { return rung(4); }},
    {"v5", [] { return rung(5); }},
    {"v6", [] { return rung(6); }},
    {"shared-qk", [] { return ViewLearner{.query_is_key = true}; }},
    {"ascent", [] { return ViewLearner{.ascent = true}; }},
};

using Config = ViewSynthesisConfig;

Tensor gained_norm(Tensor x, const Params& params) {
  return layer_norm(x, params("weight", {x.dim(-1)}, Init::ones()), 0.0, kNormEps);
}

Tensor mapped(Tensor x, const Params& params, const std::string& name, std::int64_t out,
              double stddev = kStart) {
  return ttt::linear(x, params(name + ".weight", {out, x.dim(-1)}, Init::normal(stddev)));
}

// The last map of what is added to x, as in GPT-2: the sum over all blocks keeps its size.
Tensor projected(Tensor x, const Params& params, const Config& c) {
  return mapped(x, params, "c_proj", c.width, kStart / std::sqrt(3.0 * static_cast<double>(c.depth)));
}

struct Heads {
  Tensor q, k, v;  // [batch, heads, tokens, dim]
};

Heads heads_of(Tensor qkv, const Config& c) {
  const auto part = [&](std::int64_t i) {
    return ttt::split_heads(slice(qkv, -1, i * c.width, (i + 1) * c.width), c.heads);
  };
  return {part(0), part(1), part(2)};
}

Tensor attention_within_views(Tensor x, const Params& params, std::int64_t views, const Config& c) {
  const std::int64_t batch = x.dim(0), tokens = x.dim(1) / views;
  const Heads all =
      heads_of(mapped(reshape(x, {batch * views, tokens, c.width}), params, "to_qkv", 3 * c.width), c);
  const auto normed = [&](Tensor y, const char* name) {
    return rms_norm(y, params(name, {c.width / c.heads}, Init::ones()), kQueryEps);
  };
  const Tensor q = normed(all.q, "q_norm.weight"), k = normed(all.k, "k_norm.weight");
  const Tensor out = ttt::join_heads(ttt::attention(q, k, all.v, {.window = 0, .causal = false}));
  return reshape(projected(out, params, c), x.shape());
}

// f of the learner, which starts from parameters w0, w1, w2.
ttt::Model fast_model(const Params& params, const Config& c) {
  const std::int64_t dim = c.width / c.heads, hidden = c.hidden_ratio * dim;
  const auto w = [&](const char* name, std::int64_t in, std::int64_t out) {
    return params(name, {c.heads, in, out}, Init::normal(std::sqrt(2.0 / static_cast<double>(in))));
  };
  if (c.learner.single_layer)
    return ttt::starting_from({w("w1", dim, dim)}, [&](const Params& p) {
      return ttt::linear(p, {.heads = c.heads, .in = dim, .out = dim});
    });
  return ttt::starting_from(
      {w("w0", dim, hidden), w("w1", hidden, dim), w("w2", dim, hidden)}, [&](const Params& p) {
        return ttt::swiglu(p, {.heads = c.heads, .in = dim, .hidden = hidden, .out = dim});
      });
}

ttt::InnerOptimizer step_of(const ViewLearner& l) {
  ttt::InnerOptimizer step;
  if (!l.token_rates) step.scale(l.base_rate);
  if (l.muon) step.muon(ttt::muon_published(l.muon_steps));
  if (l.step_scale != 1) step.scale(l.step_scale);
  if (l.weight_norm) step.weight_norm(kNormEps, true);
  return step;
}

// Of the input tokens, a rate for each weight that learns. x [batch, tokens, width].
ttt::Gates rates_of(Tensor x, const Params& params, const Config& c) {
  if (!c.learner.token_rates) return {};
  const std::int64_t each = c.learner.single_layer ? 1 : 3;
  // softplus(bias + this) is base_rate where lr_fc says 0.
  const double bias = m::log(m::expm1(c.learner.base_rate));
  const Tensor product = mapped(x, params, "lr_fc", each * c.heads);
  const Tensor raw = product + params("lr_fc.bias", {each * c.heads}, Init::zeros());
  const Tensor rates =
      permute(reshape(softplus(raw + bias), {x.dim(0), x.dim(1), each * c.heads, 1}), {0, 2, 1, 3});
  const auto of = [&](std::int64_t i) { return slice(rates, 1, i * c.heads, (i + 1) * c.heads); };
  if (c.learner.single_layer) return {{"rate", of(0)}};
  if (c.learner.only_last) return {{"rate.W1", of(1)}};
  return {{"rate.W0", of(0)}, {"rate.W1", of(1)}, {"rate.W2", of(2)}};
}

Tensor of_length_one(Tensor x) { return x / (norm(x, {-1}, kKeep) + kNormEps); }

ttt::Policy policy_of(const ViewLearner& l) {
  ttt::Policy out{.chunk = ttt::Policy::kWholeSequence,
                  .update = ttt::Policy::Update::per_chunk,
                  .steps = l.steps,
                  .ascent = l.ascent};
  if (l.only_last) out.trained = {"W1"};
  return out;
}

ttt::Composed fast_learner(const Params& params, const Config& c) {
  return {fast_model(params, c), ttt::inner_product(), step_of(c.learner)};
}

// The loop that learns from the first `tokens` as one of all tokens, whose others have rates of zero. all: of every token, as
// projected; q of length one. rates: of those that it learns from, as the loop itself is given them.
ttt::VisionLoop loop_of_all(const Heads& all, const ttt::Gates& rates, std::int64_t tokens, const Config& c) {
  const std::int64_t asked = all.k.dim(2) - tokens;
  ttt::Gates gates;
  for (const auto& [name, rate] : rates) gates[name] = pad(rate, 2, 0, asked);
  if (gates.empty()) {
    const Array ones = Array::full(all.k.dtype(), {all.k.dim(0), c.heads, tokens, 1}, 1);
    gates["rate"] = pad(constant(ones), 2, 0, asked);
  }
  return {.learner =
              [c](const Params& params) { return std::make_unique<ttt::Composed>(fast_learner(params, c)); },
          .policy = policy_of(c.learner),
          .views = {all.q, of_length_one(all.k), all.v, gates, {}},
          .answers = {}};
}

// x [batch, tokens, width], the first `learnt` tokens those of input views. loop: becomes that of all tokens, unless it is
// null.
Tensor fast_weights(Tensor x, const Params& params, std::int64_t learnt, const Config& c,
                    ttt::VisionLoop* loop) {
  const ViewLearner& l = c.learner;
  Heads all = heads_of(silu(mapped(x, params, "to_qkv", 3 * c.width)), c);
  all.q = of_length_one(l.query_is_key ? all.k : all.q);
  const ttt::Composed learner = fast_learner(params, c);
  const ttt::Weights start = ttt::for_batch(learner.init(), x.dim(0));
  Tensor out;
  if (l.update) {
    const auto input = [&](Tensor rows, int axis) { return slice(rows, axis, 0, learnt); };
    const ttt::Views views{
        all.q, of_length_one(input(all.k, 2)), input(all.v, 2), rates_of(input(x, 1), params, c), {}};
    const ttt::InnerLoopOptions options{.policy = policy_of(l), .form = c.form};
    out = ttt::train_along(learner, start, views, options).output;
    if (loop) {
      *loop = loop_of_all(all, views.gates, learnt, c);
      loop->answers = out;
    }
  } else {
    out = learner.predict(start, all.q);
  }
  out = rms_norm(out, params("o_norm.weight", {c.width / c.heads}, Init::ones()), kNormEps);
  return projected(ttt::join_heads(out), params, c);
}

Tensor mlp(Tensor x, const Params& params, const Config& c) {
  const auto hidden = static_cast<std::int64_t>(static_cast<double>(c.width) * c.mlp_ratio);
  return projected(gelu(mapped(x, params, "c_fc", hidden)), params, c);
}

// a x b of vectors in the last axis.
Tensor cross(Tensor a, Tensor b) {
  const auto part = [](Tensor x, std::int64_t i) { return slice(x, -1, i, i + 1); };
  const auto component = [&](std::int64_t i, std::int64_t j) {
    return part(a, i) * part(b, j) - part(a, j) * part(b, i);
  };
  return concat({component(1, 2), component(2, 0), component(0, 1)}, -1);
}

// Pixels as the model sees them, [batch * views, height, width, 12].
Tensor posed_images(Tensor images, Tensor rays, std::int64_t inputs) {
  const Tensor o = slice(rays, -1, 0, 3), d = slice(rays, -1, 3, 6);
  const Tensor seen = slice(images, 1, 0, inputs) * 2.0 - 1.0;
  const Tensor shown = pad(seen, 1, 0, rays.dim(1) - inputs);
  const Tensor all = concat({o, d, cross(o, d), shown}, -1);
  return reshape(all, {rays.dim(0) * rays.dim(1), rays.dim(2), rays.dim(3), 12});
}

void check_given(Tensor images, Tensor rays, std::int64_t inputs, const Config& c) {
  const auto fits = [&](Tensor x, std::int64_t channels) {
    return x.rank() == 5 && x.dim(2) == c.height && x.dim(3) == c.image_width && x.dim(4) == channels;
  };
  if (!fits(images, 3) || !fits(rays, 6) || images.dim(0) != rays.dim(0))
    throw ShapeError(fmt::format(
        "[view synthesis] images are {}, rays {}; they must be [batch, views, {}, {}, 3] and [batch, views, {}, "
        "{}, 6]",
        to_string(images.spec()), to_string(rays.spec()), c.height, c.image_width, c.height, c.image_width));
  if (inputs < 1 || inputs > images.dim(1) || inputs >= rays.dim(1))
    throw ShapeError(fmt::format(
        "[view synthesis] {} input views: there must be one, images of all of them and rays of more; images are {}, "
        "rays {}",
        inputs, to_string(images.spec()), to_string(rays.spec())));
}

}  // namespace

ViewLearner view_learner_named(std::string_view name) {
  for (const Row& row : kLearners)
    if (row.name == name) return row.make();
  throw ConfigError(fmt::format("[view synthesis] there is no learner '{}'; there are {}", name,
                                fmt::join(view_learner_names(), ", ")));
}

std::string_view name_of(const ViewLearner& learner) {
  for (const Row& row : kLearners)
    if (row.make() == learner) return row.name;
  return "";
}

std::vector<std::string> view_learner_names() {
  std::vector<std::string> out;
  for (const Row& row : kLearners) out.emplace_back(row.name);
  return out;
}

void ViewSynthesisConfig::check() const {
  const auto refuse = [](const std::string& why) { throw ConfigError("[view synthesis] " + why); };
  check_sizes("view synthesis", {height, image_width, 3, patch, width, heads, mlp_ratio});
  check_positive("view synthesis", "depth", depth);
  check_positive("view synthesis", "hidden_ratio", hidden_ratio);
  check_positive("view synthesis", "steps", learner.steps);
  if (learner.muon_steps < 0)
    refuse(fmt::format("muon_steps must not be negative, it is {}", learner.muon_steps));
  if (!(learner.base_rate > 0))
    refuse(fmt::format("base_rate must be positive, it is {}", learner.base_rate));
  if (learner.only_last && learner.single_layer)
    refuse("a single layer is its own last one; set only_last or single_layer");
}

namespace {

// loop: becomes that of block `opened`, unless it is null.
Tensor synthesized_views(Tensor images, Tensor rays, std::int64_t inputs, const Params& params,
                         const ViewSynthesisConfig& c, std::int64_t opened, ttt::VisionLoop* loop) {
  c.check();
  check_given(images, rays, inputs, c);
  const std::int64_t batch = rays.dim(0), views = rays.dim(1);
  Tensor x = mapped(patches_of(posed_images(images, rays, inputs), c.patch), params, "input_linear", c.width);
  const std::int64_t tokens = x.dim(1);  // of a view
  x = gained_norm(reshape(x, {batch, views * tokens, c.width}), params.at("input_layernorm"));
  for (std::int64_t i = 0; i < c.depth; ++i) {
    const Scope scope(fmt::format("blocks.{}", i));
    const auto module = [&](int n) {
      return params.at("blocks").at(std::to_string(i)).at("module_list").at(std::to_string(n));
    };
    const auto normed = [&](int n) { return gained_norm(x, module(n).at("ln")); };
    x = x + attention_within_views(normed(0), module(0).at("f"), views, c);
    x = x + fast_weights(normed(1), module(1).at("f"), inputs * tokens, c, i == opened ? loop : nullptr);
    x = x + mlp(normed(2), module(2).at("f"), c);
  }
  const Scope scope("image_token_decoder");
  const Tensor asked = slice(x, 1, inputs * tokens, views * tokens);
  const Params decoder = params.at("image_token_decoder");
  const Tensor pixels =
      sigmoid(mapped(gained_norm(asked, decoder.at("0")), decoder, "1", c.patch * c.patch * 3));
  const std::int64_t targets = views - inputs;
  const Tensor out = images_of(reshape(pixels, {batch * targets, tokens, c.patch * c.patch * 3}), c.height,
                               c.image_width, c.patch);
  return reshape(out, {batch, targets, c.height, c.image_width, 3});
}

}  // namespace

Tensor synthesized_views(Tensor images, Tensor rays, std::int64_t inputs, const Params& params,
                         const ViewSynthesisConfig& c) {
  return synthesized_views(images, rays, inputs, params, c, 0, nullptr);
}

Tensor synthesized_views(Tensor images, Tensor rays, std::int64_t inputs, const Params& params,
                         const ViewSynthesisConfig& c, std::int64_t block, ttt::VisionLoop& loop) {
  if (block < 0 || block >= c.depth)
    throw ConfigError(fmt::format("[view synthesis] there is no block {}, there are {}", block, c.depth));
  if (!c.learner.update)
    throw ConfigError(
        "[view synthesis] without an update there is no inner loop; look into a model whose learner is not 'off'");
  return synthesized_views(images, rays, inputs, params, c, block, &loop);
}

std::vector<ParamSpec> parameters_of(const ViewSynthesisConfig& c) {
  const auto views = [&](std::int64_t count, std::int64_t channels) {
    return Spec{DType::f32, {1, count, c.height, c.image_width, channels}};
  };
  return trace_model(DType::f32, {views(1, 3), views(2, 6)},
                     [&](ParamTable& table, const std::vector<Tensor>& in) {
                       return std::vector<Tensor>{synthesized_views(in[0], in[1], 1, Params(table), c)};
                     })
      .params;
}

}  // namespace nestgrad::vision
