// The promise: a published system is the recurrence of its paper, and every form in which it can be run gives
// the same numbers, as values and as derivatives.
#include "autograd/grad.h"
#include "tests/ttt/system_testing.h"
#include "ttt/layer.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using ttt::system_named;

namespace {

constexpr double kTolerance = 1e-11;

// The system online, one token a chunk.
System online(System system) {
  system.policy = [given = system.policy](const ttt::SystemSizes& s) {
    ttt::Policy policy = given(s);
    policy.chunk = 1;
    return policy;
  };
  return system;
}

// One token's gradient of the system's own loss, at these weights.
Tensors gradient(const SystemProgram& p, const Weights& at, std::int64_t t) {
  Tensors w = at.values();
  for (Tensor& each : w) each = probe(each);
  return grad(sum(p.learner->loss(at.with(w), token(p.views.k, t), token(p.views.v, t))), w);
}

// W <- W - 0.1 (2 / dim) k' (k W - v), then q W.
InnerLoopResult naive_by_hand(const SystemProgram& p) {
  Tensor w = p.start.at(0).value;
  Tensors outputs;
  for (std::int64_t t = 0; t < p.views.k.dim(2); ++t) {
    const Tensor k = token(p.views.k, t), error = matmul(k, w) - token(p.views.v, t);
    w = w - 0.1 * (2.0 / static_cast<double>(k.dim(3))) * matmul(k, error, {.a = true});
    outputs.push_back(matmul(token(p.views.q, t), w));
  }
  return made_by_hand(outputs, p.start.with({w}));
}

// W <- W - rate / (1 + s) d-<f(k), v>/dW at the beginning of each chunk, then f(q).
SystemRun kv_binding_by_hand(std::int64_t chunk) {
  return [chunk](const SystemProgram& p) {
    Weights w = p.start, first = p.start;
    Tensors outputs;
    for (std::int64_t t = 0; t < p.views.k.dim(2); ++t) {
      if (t % chunk == 0) first = w;
      const Tensor k = token(p.views.k, t), v = token(p.views.v, t), w1 = probe(first["W1"]),
                   w2 = probe(first["W2"]);
      const Tensors g = grad(-sum(matmul(silu(matmul(k, w1)), w2) * v), {w1, w2});
      const auto squares = [](Tensor x) { return sum(square(x), {-2, -1}, kKeep); };
      const Tensor all =
          squares(silu(matmul(k, first["W1"]))) * squares(v) + squares(matmul(v, first["W2"], {.b = true}));
      const Tensor rate = token(p.views.gates.at("rate"), t) / (1.0 + sqrt(all));
      w = w.with({w["W1"] - rate * g[0], w["W2"] - rate * g[1]});
      outputs.push_back(matmul(silu(matmul(token(p.views.q, t), w["W1"])), w["W2"]));
    }
    return made_by_hand(outputs, w);
  };
}

// Equations 10 and 13, gradients at the beginning of each chunk, read after write. most: what a rate is multiplied by.
SystemRun titans_by_hand(std::int64_t chunk, double most) {
  return [=](const SystemProgram& p) {
    const Views& v = p.views;
    Weights memory = p.start, first = p.start;
    Tensors surprise(memory.size()), outputs;
    for (std::int64_t t = 0; t < v.k.dim(2); ++t) {
      if (t % chunk == 0) first = memory;
      const Tensors g = gradient(p, first, t);
      Tensors next = memory.values();
      for (std::size_t i = 0; i < next.size(); ++i) {
        const Tensor momentary = -most * token(v.gates.at("rate"), t) * g[i];
        surprise[i] =
            surprise[i].defined() ? token(v.gates.at("eta"), t) * surprise[i] + momentary : momentary;
        next[i] = token(v.gates.at("keep"), t) * next[i] + surprise[i];
      }
      memory = memory.with(next);
      outputs.push_back(p.learner->predict(memory, token(v.q, t)));
    }
    return made_by_hand(outputs, memory);
  };
}

double error_by_hand(const System& system, const ProgramSizes& sizes, const SystemRun& by_hand) {
  return worst_error(run_system(system, sizes, system_in(FormChoice::automatic), 1),
                     run_system(system, sizes, by_hand, 1));
}

const ProgramSizes kPartial{.time = 10, .chunk = 4};  // two chunks and a part of one

}  // namespace

TEST_CASE("naive TTT, KV binding and Titans are the recurrences of their papers, as values and at order 1") {
  CHECK(error_by_hand(system_named("naive-ttt"), kPartial, naive_by_hand) < kTolerance);
  const System& kv_binding = system_named("kv-binding");
  CHECK(error_by_hand(kv_binding, kPartial, kv_binding_by_hand(4)) < kTolerance);
  CHECK(error_by_hand(online(kv_binding), kPartial, kv_binding_by_hand(1)) < kTolerance);
  CHECK(error_by_hand(kv_binding, kPartial, kv_binding_by_hand(1)) > 1e-4);  // the control
  for (const std::string name : {"titans-linear", "titans-mlp"}) {
    CAPTURE(name);
    const System& system = system_named(name);
    // The rates of the perceptron's chunk add up to 0.1 at most.
    const double most = name == "titans-mlp" ? 0.1 / static_cast<double>(kPartial.chunk) : 1;
    CHECK(error_by_hand(system, kPartial, titans_by_hand(4, most)) < kTolerance);
    CHECK(error_by_hand(online(system), kPartial, titans_by_hand(1, most)) < kTolerance);
    CHECK(error_by_hand(system, kPartial, titans_by_hand(1, most)) > 1e-4);  // the control
  }
}

TEST_CASE("naive TTT: dual, WY and primal agree at values and orders 1 and 2; there is no parallel form") {
  CHECK(refused(system_named("naive-ttt"), kPartial, 2) == "parallel");
}

TEST_CASE("KV binding: dual and primal agree at values and orders 1 and 2; there is no other form") {
  CHECK(refused(system_named("kv-binding"), kPartial, 2) == "parallel wy");
  CHECK(refused(online(system_named("kv-binding")), {.time = 5}, 2) == "parallel wy");
}

TEST_CASE("Titans: all valid forms agree at values and orders 1 and 2, in chunks and online") {
  const System &linear = system_named("titans-linear"), &deep = system_named("titans-mlp");
  CHECK(refused(linear, kPartial, 2) == "parallel wy");
  CHECK(refused(online(linear), kPartial, 2) == "parallel");
  CHECK(refused(deep, kPartial, 2) == "parallel wy");
  CHECK(refused(online(deep), {.batch = 1, .time = 6}, 2) == "parallel wy");
}

TEST_CASE("Titans: a sequence of one chunk, and one shorter than a chunk") {
  for (const std::string name : {"titans-linear", "titans-mlp"})
    for (const std::int64_t time : {3, 4}) {
      CAPTURE(name);
      CHECK(refused(system_named(name), {.batch = 1, .heads = 3, .time = time, .chunk = 4}, 2) ==
            "parallel wy");
    }
}

TEST_CASE("a layer without chunks has no place of a token in its chunk") {
  System system = ttt::system_named("ttt-linear");
  system.policy = [](const ttt::SystemSizes&) { return ttt::Policy{.chunk = ttt::Policy::kWholeSequence}; };
  const auto make = [&] {
    trace(
        [&](const Tensors&) {
          ParamTable table(*context().emit.graph, DType::f64);
          const Params params(table);
          const ttt::TTTLayer layer(params, {.width = 8, .heads = 2},
                                    std::make_unique<ttt::ProjectedViews>(params, 8), system, "layer");
          return Tensors{};
        },
        {});
  };
  CHECK(contains(message_of<ConfigError>(make), "has no chunks"));
}
