// The promise: steps token by token give what the whole sequence does, and what cannot be taken so is
// refused.
#include "autograd/grad.h"
#include "tests/ops/check_grads.h"
#include "tests/ttt/policy_cases.h"
#include "ttt/compose.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

// The same tokens one after the other, all steps in one program.
LoopRunner stepping(FormChoice form) {
  return [form](const TracedCase& c) {
    std::map<std::string, Tensor> carried;
    Tensors outputs;
    for (std::int64_t t = 0; t < c.views.k.dim(2); ++t) {
      Views now{row_at(c.views.q, t), row_at(c.views.k, t), row_at(c.views.v, t), {}, c.views.position};
      for (const auto& [name, rows] : c.views.gates) now.gates[name] = row_at(rows, t);
      ttt::Stream stream(carried);
      const Tensor slot =
          constant(Array::full(DType::f64, {1}, static_cast<double>(t % c.loop.policy.chunk)));
      outputs.push_back(ttt::train_step(c.learner, c.start, now, slot,
                                        {.policy = c.loop.policy, .form = form}, stream, "layer"));
      carried = stream.carried();
    }
    return Tensors{concat(outputs, 2)};
  };
}
LoopRunner only_outputs(const LoopRunner& run) {
  return [run](const TracedCase& c) { return Tensors{run(c)[0]}; };
}
std::string stepping_wrong(const LoopCase& loop) {
  const Arrays expected = numbers(loop, only_outputs(by_hand()), 1, true);
  std::string out;
  for (const FormChoice form : {FormChoice::automatic, FormChoice::primal}) {
    const double error = error_of(numbers(loop, stepping(form), 1, true), expected);
    if (!(error < 1e-11))
      out += fmt::format("{}, {}, {}: {:.2g}; ", loop.method.name, loop.policy.str(), ttt::name(form), error);
  }
  const double whole =
      error_of(numbers(loop, only_outputs(in_form(FormChoice::automatic)), 1, true), expected);
  if (!(whole < 1e-11))
    out += fmt::format("{}, {}, whole: {:.2g}; ", loop.method.name, loop.policy.str(), whole);
  return out;
}

// Every `step`th choice of optimiser, chunk, moment of reading and position rates, token by token.
void check_stepping(std::size_t step) {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 7, .dim = 4};
  const NamedLearner biased = perceptron("x W + b", 2, {4, 4}, tanh);
  std::vector<Method> methods = linear_methods(sizes);
  for (const Method& method : nonlinear_methods(sizes)) methods.push_back(method);
  std::size_t i = 0;
  for (const Method& method : methods)
    for (const std::int64_t chunk : {1, 3})
      for (const Read read : {Read::after_write, Read::before_write})
        for (const bool position : {false, true})
          if (i++ % step == 0)
            CHECK(stepping_wrong(
                      {biased, method, {.chunk = chunk, .read = read}, sizes, {{"rate"}}, position}) == "");
}

}  // namespace

TEST_CASE("token by token = the whole sequence = by hand: steps per token, linear or not" *
          doctest::test_suite("slow")) {
  check_stepping(7);  // seven and the eight policies have no factor in common: every optimiser, every policy
}
TEST_SUITE("slow") {
  TEST_CASE(
      "token by token = the whole sequence = by hand: steps per "
      "token, linear or not, with position rates or without" *
      doctest::test_suite("slow")) {
    check_stepping(1);
  }
}
TEST_CASE(
    "token by token: gates per feature, gates before the gradient, "
    "gradients that depend on no weight, some weights only" *
    doctest::test_suite("slow")) {
  const Sizes sizes{.batch = 2, .heads = 2, .time = 6, .dim = 4};
  for (const Read read : {Read::after_write, Read::before_write}) {
    for (const Method& method : feature_methods(sizes))
      for (const std::int64_t chunk : {1, 4})
        for (const NamedLearner& named : {matrix_of(sizes), hebbian(sizes)})
          CHECK(stepping_wrong(
                    {named, method, {.chunk = chunk, .read = read}, sizes, {{"rate"}}, chunk == 4}) == "");
    for (const Method& method : moving_methods())
      CHECK(stepping_wrong({matrix_of(sizes), method, {.chunk = 1, .read = read}, sizes}) == "");
    CHECK(stepping_wrong(
              {swiglu(sizes),
               with_gates(),
               {.chunk = 4, .read = read, .ascent = true, .query_is_key = true, .trained = {"W2", "W1"}},
               sizes,
               {{"rate.W1"}}}) == "");
    CHECK(stepping_wrong(
              {ttt_mlp(sizes), with_gates(), {.chunk = 4, .read = read}, sizes, {{"rate"}}, true}) == "");
  }
}
TEST_CASE("token by token: a step a chunk, read before write (LaCT)") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 8, .dim = 4};
  const std::vector<GateInput> own{{"rate.W0"}, {"rate.W1"}, {"rate.W2"}};
  for (const std::int64_t chunk : {1, 3, 4, 9}) {
    Policy policy{.chunk = chunk, .update = Update::per_chunk, .read = Read::before_write};
    CHECK(stepping_wrong({swiglu(sizes), rung(true, true, true), policy, sizes, own}) == "");
    CHECK(stepping_wrong({hebbian(sizes), rung(false, true, true), policy, sizes}) == "");
    CHECK(stepping_wrong({hebbian(sizes), with_gates(), policy, sizes}) == "");
    policy.steps = 2;
    policy.average = policy.ascent = true;
    policy.trained = {"W1"};
    CHECK(stepping_wrong({swiglu(sizes), with_gates(), policy, sizes}) == "");
  }
}
TEST_CASE("token by token: weights and slots may be called as anything that is carried beside them") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 8, .dim = 4};
  for (const std::string weight : {"k", "v", "slot", "gate.rate", "gradient0.a"}) {
    CAPTURE(weight);
    const NamedLearner named = formula(
        "tanh(x W)",
        [=](const Params& p) {
          return Weights{matrix(weight, p("W", {sizes.heads, sizes.dim, sizes.dim}))};
        },
        [weight](const Weights& w, Tensor x) { return tanh(matmul(x, w[weight])); });
    CHECK(stepping_wrong({named, sgd(), {.chunk = 3}, sizes}) == "");
    CHECK(stepping_wrong(
              {named, sgd(), {.chunk = 3, .update = Update::per_chunk, .read = Read::before_write}, sizes}) ==
          "");
  }
  const Method running{"a slot named running", {}, [](const Params&) {
                         Hand hand{.start = [](Tensor w) { return Tensors{w, nothing(w)}; }};
                         hand.step = [](Tensors& w, Tensor g, const Now&) {
                           w[1] = 0.5 * w[1] + tanh(g);
                           w[0] = w[0] - w[1];
                         };
                         const auto fn = [](Tensor g, std::span<Tensor> slots, const ttt::Gates&) {
                           return slots[0] = 0.5 * slots[0] + tanh(g);
                         };
                         return std::pair(InnerOptimizer().piece("soft momentum", fn, {"running"}), hand);
                       }};
  CHECK(stepping_wrong({matrix_of(sizes), running, {.chunk = 3}, sizes}) == "");
}
TEST_CASE("token by token: what is not causal, or has no chunks, is refused") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 4, .dim = 4};
  const auto why = [&](const Policy& policy) {
    return message_of<ConfigError>([&] {
      trace_case({matrix_of(sizes), sgd(), policy, sizes}, [&](const TracedCase& c) {
        ttt::Stream stream(std::map<std::string, Tensor>{});
        Views now{row_at(c.views.q, 0),
                  row_at(c.views.k, 0),
                  row_at(c.views.v, 0),
                  {{"rate", row_at(c.views.gates.at("rate"), 0)}},
                  {}};
        return Tensors{ttt::train_step(c.learner, c.start, now, constant(Array::full(DType::f64, {1}, 0)),
                                       {.policy = policy}, stream, "layer")};
      });
    });
  };
  CHECK(contains(why({.chunk = 2, .update = Update::per_chunk}), "cannot answer token by token"));
  CHECK(contains(why({.chunk = 0, .update = Update::per_chunk, .read = Read::before_write}), "token"));
  CHECK(contains(why({.chunk = 0}), "token"));
}
TEST_CASE("token by token: what a whole sequence is refused, each token is refused too, in the same words") {
  const Sizes sizes{.batch = 2, .heads = 2, .time = 2, .dim = 4};
  const auto refused = [&](const Method& method, const Policy& policy, const auto& change) {
    std::array<std::string, 2> out;
    trace_case({matrix_of(sizes), method, policy, sizes}, [&](const TracedCase& c) {
      const auto why = [&](const auto& run) {
        try {
          run();
        } catch (const Error& e) {
          return std::string(e.what());
        }
        return std::string("nothing was refused");
      };
      Views views = c.views;
      change(views);
      ttt::Stream stream(std::map<std::string, Tensor>{});
      out[0] = why([&] { ttt::train_along(c.learner, c.start, ttt::part(views, 0, 1), {.policy = policy}); });
      out[1] = why([&] {
        ttt::train_step(c.learner, c.start, ttt::part(views, 0, 1), constant(Array::full(DType::f64, {1}, 0)),
                        {.policy = policy}, stream, "layer");
      });
      return Tensors{c.views.q};
    });
    CHECK(out[0] == out[1]);
    return out[1];
  };
  const Policy policy{.chunk = 2};
  const auto with_rate = [](Shape shape) {
    return [shape](Views& views) { views.gates["rate"] = constant(Array::full(DType::f64, shape, 0.1)); };
  };
  CHECK(contains(refused(sgd(), policy, with_rate({2, 2, 2, 2})), "a rate is one number a token"));
  CHECK(contains(refused(sgd(), policy, with_rate({1, 1, 2, 1})), "it must be [batch, heads, time, 1 or in]"));
  CHECK(contains(refused(sgd(), policy, with_rate({2, 1, 2, 1})), "it must be [batch, heads, time, 1 or in]"));
  CHECK(contains(refused(sgd(), policy, [](Views& views) { views.gates["rates"] = views.gates["rate"]; }),
                 "nothing reads the gate 'rates'"));
  const Method moved{"keeps first", {{"keep"}}, [](const Params&) {
                       return std::pair(InnerOptimizer().keep(ttt::gate("keep"), true), Hand{});
                     }};
  CHECK(contains(refused(moved, policy, [](Views&) {}), "the gradient must be taken token by token"));
}
TEST_CASE("token by token: several tokens at once are refused") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 2, .dim = 4};
  trace_case({matrix_of(sizes), sgd(), {.chunk = 2}, sizes}, [&](const TracedCase& c) {
    ttt::Stream stream(std::map<std::string, Tensor>{});
    CHECK(contains(message_of<ShapeError>([&] {
                     ttt::train_step(c.learner, c.start, c.views, constant(Array::full(DType::f64, {1}, 0)),
                                     {.policy = {.chunk = 2}}, stream, "layer");
                   }),
                   "takes one token at a time"));
    for (const Shape& shape : {Shape{4}, Shape{1, 4}, Shape{2, 1, 4}, Shape{1, 1, 2, 1, 4}}) {
      const Tensor row = constant(Array::full(DType::f64, shape, 1));
      const Views views{row, row, row, c.views.gates, {}};
      CHECK(contains(message_of<ShapeError>([&] {
                       ttt::train_step(c.learner, c.start, views, constant(Array::full(DType::f64, {1}, 0)),
                                       {.policy = {.chunk = 2}}, stream, "layer");
                     }),
                     "takes one token at a time"));
    }
    return Tensors{c.views.q};
  });
}

TEST_CASE("token by token: a prediction in which tokens meet is refused") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 6, .dim = 4};
  const Policy policy{.chunk = 3, .update = Update::per_chunk, .read = Read::before_write};
  const auto of = [&](const FormulaLearner::Predict& f) {
    return formula(
        "mixing",
        [&](const Params& p) {
          return Weights{matrix("W", p("W", {sizes.heads, 4, 4}))};
        },
        f);
  };
  const NamedLearner mean_taken = of(
                         [](const Weights&w, Tensor x) { return matmul(x - mean(x, {-2}, kKeep), w["W"]); }),
                     causal_sum = of([](const Weights&w, Tensor x) { return matmul(cumsum(x, -2), w["W"]); });
  for (const NamedLearner& named : {mean_taken, causal_sum}) {
    const std::string why = message_of<ConfigError>([&] {
      stepping_wrong({named, with_gates(), policy, sizes});
    });
    CHECK(contains(why, "tokens are not independent"));
    CHECK(contains(why, "let tokens meet in the layer's Task"));
  }
  Policy online = policy;
  online.chunk = 1;  // a token is alone
  CHECK(stepping_wrong({causal_sum, with_gates(), online, sizes}) == "");
}
