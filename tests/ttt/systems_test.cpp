// The promise: a published system is the recurrence of its paper, and every form in which it can be run gives
// the same numbers, as values and as derivatives.
#include "autograd/grad.h"
#include "tests/ttt/system_testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using ttt::Policy;
using ttt::System;

namespace {

constexpr double kTolerance = 1e-11;

Arrays run(const Function& f) { return f(numbers_of(f)); }

// The system online, one token a chunk.
System online(System system) {
  system.policy = [given = system.policy](const ttt::SystemSizes& s) {
    Policy policy = given(s);
    policy.chunk = 1;
    return policy;
  };
  return system;
}

// Names of the forms that refuse this system; the others give the numbers of the primal form.
std::string refused(const System& system, const Sizes& sizes, int order) {
  std::string out;
  const Arrays expected = run(system_derivatives(system, sizes, in_form(FormChoice::primal), order));
  for (const FormChoice form : {FormChoice::dual, FormChoice::parallel, FormChoice::wy}) {
    CAPTURE(ttt::name(form));
    try {
      const double error =
          worst_error(run(system_derivatives(system, sizes, in_form(form), order)), expected);
      CHECK(error < kTolerance);
    } catch (const FormError& e) {
      const std::string why = e.what(); MESSAGE(why);
      out += fmt::format("{}{}", out.empty() ? "" : " ", ttt::name(form));
    }
  }
  return out;
}

Tensor token(Tensor rows, std::int64_t t) { return slice(rows, 2, t, t + 1); }

// One token's gradient of the system's own loss, at these weights.
Tensors gradient(const SystemReading& r, const Weights& at, std::int64_t t) {
  Tensors w = at.values();
  for (Tensor& each : w) each = probe(each);
  return grad(sum(r.learner.loss(at.with(w), token(r.views.k, t), token(r.views.v, t))), w);
}

InnerLoopResult result(const Tensors& outputs, const Weights& last) {
  InnerLoopResult out;
  out.output = concat(outputs, 2);
  out.state = {last, {}};
  return out;
}

// W <- W - 0.1 (2 / dim) k' (k W - v), then q W.
InnerLoopResult naive_by_hand(const SystemReading& r) {
  Tensor w = r.start.at(0).value;
  Tensors outputs;
  for (std::int64_t t = 0; t < r.views.k.dim(2); ++t) {
    const Tensor k = token(r.views.k, t), error = matmul(k, w) - token(r.views.v, t);
    w = w - 0.1 * (2.0 / static_cast<double>(k.dim(3))) * matmul(k, error, {.a = true});
    outputs.push_back(matmul(token(r.views.q, t), w));
  }
  return result(outputs, r.start.with({w}));
}

// W <- W - rate dloss/dW, then f(q).
InnerLoopResult kv_binding_by_hand(const SystemReading& r) {
  Weights w = r.start;
  Tensors outputs;
  for (std::int64_t t = 0; t < r.views.k.dim(2); ++t) {
    Tensors next = w.values();
    const Tensors g = gradient(r, w, t);
    for (std::size_t i = 0; i < next.size(); ++i)
      next[i] = next[i] - token(r.views.gates.at("rate"), t) * g[i];
    w = w.with(next);
    const Tensor hidden = silu(matmul(token(r.views.q, t), w["W1"]));
    outputs.push_back(matmul(hidden, w["W2"]));
  }
  return result(outputs, w);
}

// Equations 10 and 13, gradients at the beginning of each chunk, read before write.
SystemRun titans_by_hand(std::int64_t chunk) {
  return [chunk](const SystemReading& r) {
    const Views& v = r.views;
    Weights memory = r.start, first = r.start;
    Tensors surprise(memory.size()), outputs;
    for (std::int64_t t = 0; t < v.k.dim(2); ++t) {
      if (t % chunk == 0) first = memory;
      outputs.push_back(r.learner.predict(memory, token(v.q, t)));
      const Tensors g = gradient(r, first, t);
      Tensors next = memory.values();
      for (std::size_t i = 0; i < next.size(); ++i) {
        const Tensor momentary = -token(v.gates.at("rate"), t) * g[i];
        surprise[i] =
            surprise[i].defined() ? token(v.gates.at("eta"), t) * surprise[i] + momentary : momentary;
        next[i] = token(v.gates.at("keep"), t) * next[i] + surprise[i];
      }
      memory = memory.with(next);
    }
    return result(outputs, memory);
  };
}

double error_by_hand(const System& system, const Sizes& sizes, const SystemRun& by_hand) {
  return worst_error(run(system_derivatives(system, sizes, in_form(FormChoice::automatic), 1)),
                     run(system_derivatives(system, sizes, by_hand, 1)));
}

const Sizes kPartial{
    .batch = 2, .heads = 2, .time = 10, .dim = 4, .mini_batch = 4};  // two chunks and a part of one

}  // namespace

TEST_CASE("naive TTT, KV binding and Titans are the recurrences of their papers, as values and at order 1") {
  CHECK(error_by_hand(ttt::system_named("naive-ttt"), kPartial, naive_by_hand) < kTolerance);
  CHECK(error_by_hand(ttt::system_named("kv-binding"), kPartial, kv_binding_by_hand) < kTolerance);
  for (const char* name : {"titans-linear", "titans-mlp"}) {
    CAPTURE(name);
    const System& system = ttt::system_named(name);
    CHECK(error_by_hand(system, kPartial, titans_by_hand(4)) < kTolerance);
    CHECK(error_by_hand(online(system), kPartial, titans_by_hand(1)) < kTolerance);
    CHECK(error_by_hand(system, kPartial, titans_by_hand(1)) > 1e-3);  // the control
  }
}

TEST_CASE("naive TTT: dual, WY and primal agree at values and orders 1 and 2; no parallel form") {
  CHECK(refused(ttt::system_named("naive-ttt"), kPartial, 2) == "parallel");
}

TEST_CASE("KV binding: dual and primal agree at values and orders 1 and 2; no parallel form, no WY") {
  CHECK(refused(ttt::system_named("kv-binding"), kPartial, 2) == "parallel wy");
}

TEST_CASE("Titans: all valid forms agree at values and orders 1 and 2, in chunks and online") {
  const System &linear = ttt::system_named("titans-linear"), &deep = ttt::system_named("titans-mlp");
  CHECK(refused(linear, kPartial, 2) == "parallel wy");
  CHECK(refused(online(linear), kPartial, 2) == "parallel");
  CHECK(refused(deep, kPartial, 2) == "parallel wy");
  CHECK(refused(online(deep), {.batch = 1, .heads = 2, .time = 6, .dim = 4}, 2) == "parallel wy");
}

TEST_CASE("a whole sequence in one chunk, and one shorter than a chunk") {
  for (const char* name : {"titans-linear", "titans-mlp"})
    for (const std::int64_t time : {3, 4}) {
      CAPTURE(name);
      CHECK(refused(ttt::system_named(name),
                    {.batch = 1, .heads = 3, .time = time, .dim = 4, .mini_batch = 4}, 2) == "parallel wy");
    }
}

TEST_CASE(
    "Titans reads before it writes: the first token finds the memory as it was learnt in the outer loop") {
  const System& system = ttt::system_named("titans-linear");
  const auto first = [&](const Array& k) {
    const Function f = system_reading(system, kPartial, [](const SystemReading& r) {
      return Tensors{token(ttt::train_along(r.learner, r.start, r.views, {.policy = r.policy}).output, 0)};
    });
    Arrays in = numbers_of(f);
    in[1] = k;
    return f(in)[0];
  };
  const Spec rows = f64({kPartial.batch, kPartial.heads, kPartial.time, kPartial.dim});
  CHECK(first(random(rows, 50)).same_bits(first(random(rows, 51))));
}
