// The promise: a layer reads a sequence at once and token by token with the same numbers, for any system; a
// system for which that cannot be is refused with the node that is to blame.
#include "ttt/layer.h"

#include "tests/layer_outputs.h"
#include "ttt/learners/catalogue.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using ttt::Policy;
using ttt::System;
using ttt::SystemSizes;
using ttt::Views;

namespace {

constexpr std::int64_t kBatch = 2, kTime = 7, kWidth = 8, kHeads = 2;

// x W, a step a token at rate 0.1, in chunks of 3.
System plain_system() {
  System s{.name = "test", .title = "test", .source = "test"};
  s.learner = [](const Params& p, const SystemSizes& n) {
    return std::make_unique<ttt::Composed>(ttt::linear(p, {.heads = n.heads, .in = n.dim, .out = n.dim}),
                                           ttt::half_squared_error());
  };
  s.policy = [](const SystemSizes&) { return Policy{.chunk = 3}; };
  s.gates = {{.name = "rate", .shape = [](Tensor raw) { return 0.2 * sigmoid(raw); }}};
  return s;
}

System with_prepare(std::function<void(Views&)> prepare) {
  System s = plain_system();
  s.prepare = std::move(prepare);
  return s;
}

// x [batch, time, width] through a layer of this system; by token: through streams.
Arrays run(const System& system, bool by_token, std::int64_t time = kTime) {
  return layer_outputs(f64({kBatch, time, kWidth}), by_token, [&](const Params& params) {
    return ttt::TTTLayer(params, {.width = kWidth, .heads = kHeads},
                         std::make_unique<ttt::ProjectedViews>(params, kWidth), system, "layer");
  });
}

std::string refusal(const System& system, bool by_token) {
  return message_of<ConfigError>([&] { run(system, by_token); });
}

}  // namespace

TEST_CASE("a layer reads token by token what it reads at once") {
  const std::vector<System> systems{
      plain_system(),
      with_prepare([](Views& v) { v.q = l2_norm(v.q), v.k = silu(v.k), v.v = v.v * 0.5 + 1.0; }),
      with_prepare([](Views& v) { v.gates["rate"] = sum(square(v.k), {-1}, kKeep) * v.gates.at("rate"); }),
      with_prepare([](Views& v) {
        v.gates["rate"] = broadcast_to(full(v.k.dtype(), {1}, 0.1), v.gates["rate"].shape());
      }),
      ttt::delta_net(),
      ttt::lact(),
  };
  for (const System& s : systems) {
    CAPTURE(s.name);
    CHECK(max_error(run(s, true), run(s, false)) < 1e-12);
  }
}

TEST_CASE("a layer of linear attention rotates queries and keys by their places in the sequence") {
  // By hand, with the parameters of the layer in the order in which it asks for them.
  const auto by_hand = [](const Params& p) {
    return [p](Tensor x, ttt::Stream&) {
      const Tensor q = p("q_proj.weight", {kWidth, kWidth}), k = p("k_proj.weight", {kWidth, kWidth}),
                   v = p("v_proj.weight", {kWidth, kWidth});
      const Tensor shift = p("post_norm.bias", {kWidth}, Init::zeros()),
                   gain = p("post_norm.weight", {kWidth}, Init::ones()),
                   out = p("o_proj.weight", {kWidth, kWidth});
      const Tensor places = iota(x.dtype(), {x.dim(1)}, 0);
      const auto heads = [&](Tensor weight) { return ttt::split_heads(ttt::linear(x, weight), kHeads); };
      const Tensor scores = matmul(rope(heads(q), places), rope(heads(k), places), {.b = true});
      const Tensor read = matmul(tril(scores), heads(v)) / std::sqrt(static_cast<double>(kWidth / kHeads));
      return ttt::linear(layer_norm(ttt::join_heads(read), gain, shift), out);
    };
  };
  System plain = ttt::linear_attention();
  plain.rotary_in_sequence = false;
  for (const bool by_token : {false, true}) {
    const Arrays expected = layer_outputs(f64({kBatch, kTime, kWidth}), false, by_hand);
    CHECK(max_error(run(ttt::linear_attention(), by_token), expected) < 1e-12);
    CHECK(max_error(run(plain, by_token), expected) > 1e-2);
  }
}

TEST_CASE("a layer refuses a system that treats a token by what stands beside it, or by its place") {
  const auto shifted = [](Tensor x) { return slice(pad(x, 2, 1, 0), 2, 0, x.dim(2)); };
  const auto expect = [](const System& s, const std::string& view, const std::string& what) {
    for (const bool by_token : {false, true}) {
      const std::string why = refusal(s, by_token);
      CAPTURE(why);
      CHECK(contains(why, "[ttt] test is not causal"));
      CHECK(contains(why, "in '" + view + "', at %"));
      CHECK(contains(why, what));
      CHECK(contains(why, "Let tokens meet in the layer's Task"));
    }
  };
  expect(with_prepare([&](Views& v) { v.k = shifted(v.k); }), "k", "pad");
  expect(with_prepare([](Views& v) { v.v = cumsum(v.v, 2); }), "v", "cumsum");
  expect(with_prepare([](Views& v) { v.q = v.q - mean(v.q, {2}, kKeep); }), "q", "sum");
  expect(with_prepare([](Views& v) {
           v.q = v.q * reshape(iota(v.q.dtype(), {v.q.dim(2)}, 0), {v.q.dim(2), 1});
         }),
         "q", "differs from slice to slice");
  System s = plain_system();
  s.gates[0].shape = [](Tensor raw) { return exp(-cumsum(softplus(raw), 2)); };
  expect(s, "rate", "cumsum");
}

TEST_CASE("a layer refuses a system that makes something of how many tokens or sequences it is given") {
  const auto expect = [](const System& s, const std::string& view) {
    for (const bool by_token : {false, true}) {
      const std::string why = refusal(s, by_token);
      CAPTURE(why);
      CHECK(contains(why, "[ttt] test is not causal"));
      CHECK(contains(why, "in '" + view + "', "));
      CHECK(contains(why, "how many tokens or axes there are"));
    }
  };
  const auto ones = [](Tensor x) { return full(x.dtype(), {x.dim(2), 1}, 1); };
  const auto of = [](Tensor x, int axis) { return static_cast<double>(x.dim(axis)); };
  expect(with_prepare([&](Views& v) { v.q = v.q / of(v.q, 2); }), "q");
  expect(with_prepare([&](Views& v) { v.v = v.v / of(v.v, 0); }), "v");
  expect(with_prepare([&](Views& v) { v.k = v.k / sum(ones(v.k), {-2}, kKeep); }), "k");
  expect(with_prepare([](Views& v) {
           if (v.k.dim(2) > 1) v.k = tanh(v.k);
         }),
         "k");
  System s = plain_system();
  s.gates[0].shape = [&](Tensor raw) { return sigmoid(raw) / of(raw, 2); };
  expect(s, "rate");
  s.gates[0].shape = [&](Tensor raw) { return sigmoid(raw) / sum(ones(raw), {-2}, kKeep); };
  expect(s, "rate");
  // Features may be counted.
  const System by_features = with_prepare([&](Views& v) { v.q = v.q / of(v.q, -1); });
  CHECK(max_error(run(by_features, true), run(by_features, false)) < 1e-12);
}

TEST_CASE("a layer refuses a learner in whose prediction tokens meet, per chunk, read before write") {
  System s = plain_system();
  s.policy = [](const SystemSizes&) {
    return Policy{.chunk = 3, .update = Policy::Update::per_chunk, .read = Policy::Read::before_write};
  };
  CHECK(max_error(run(s, true), run(s, false)) < 1e-12);
  // In the loss they may: a chunk is learnt from when it is complete.
  System meeting = s;
  meeting.learner = [](const Params& p, const SystemSizes& n) {
    return std::make_unique<ttt::Composed>(
        ttt::linear(p, {.heads = n.heads, .in = n.dim, .out = n.dim}),
        ttt::InnerLoss{"to the mean", [](Tensor prediction, Tensor target) {
                         return sum(square(prediction - mean(target, {-2}, kKeep)), {-1}, kKeep);
                       }});
  };
  CHECK(max_error(run(meeting, true), run(meeting, false)) < 1e-12);
  CHECK(max_error(run(meeting, true), run(s, true)) > 1e-3);
  s.learner = [](const Params& p, const SystemSizes& n) {
    ttt::Model model = ttt::linear(p, {.heads = n.heads, .in = n.dim, .out = n.dim});
    model.f = [](const ttt::Weights& w, Tensor x) { return matmul(x + cumsum(x, -2), w["W"]); };
    return std::make_unique<ttt::Composed>(model, ttt::half_squared_error());
  };
  for (const bool by_token : {false, true})
    CHECK(contains(refusal(s, by_token), "[predict] tokens are not independent"));
}

TEST_CASE("a layer without a learner, a policy, weights or tokens says so") {
  System s = plain_system();
  s.learner = nullptr;
  CHECK(contains(refusal(s, false), "has no learner"));
  s = plain_system();
  s.policy = nullptr;
  CHECK(contains(refusal(s, false), "has no policy"));
  s = plain_system();
  s.learner = [](const Params&, const SystemSizes&) {
    return std::make_unique<ttt::Composed>(
        ttt::Model{"x", {}, [](const ttt::Weights&, Tensor x) { return x; }}, ttt::half_squared_error());
  };
  CHECK(contains(refusal(s, false), "weight"));
  CHECK(contains(message_of<ShapeError>([] { run(plain_system(), false, 0); }), "no token"));
}

TEST_CASE("a layer refuses answers of another width than its heads have, naming predict and both widths") {
  System s = plain_system();
  s.learner = [](const Params& p, const SystemSizes& n) {
    return std::make_unique<ttt::Composed>(ttt::linear(p, {.heads = n.heads, .in = n.dim, .out = 2 * n.dim}),
                                           ttt::half_squared_error());
  };
  s.prepare = [](Views& v) { v.v = concat({v.v, silu(v.v)}, -1); };
  for (const bool by_token : {false, true}) {
    const std::string message = message_of<ShapeError>([&] { run(s, by_token); });
    CAPTURE(message);
    CHECK(contains(message, "predict() gives answers of 8 features, and a head of the layer has 4"));
  }
}
