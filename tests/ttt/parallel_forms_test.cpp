// The promise: the parallel form (no factor depends on a learning weight) and the WY form (one use, affine)
// are the online recurrence, for any length of their blocks, any linear step and any order of derivatives;
// and they are refused, with the reason, wherever they would not be.
#include "tests/ttt/methods.h"
#include "ttt/forms/wy.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using ttt::gate;
using Read = Policy::Read;

namespace {

const Sizes kSizes{.batch = 1, .heads = 2, .time = 5, .dim = 4};

// Every block length of the form, and automatic choice, against the recurrence by hand.
std::string wrong(const LoopCase& loop, FormChoice form, const std::vector<std::int64_t>& blocks, int order) {
  const Arrays expected = numbers(loop, by_hand(), order);
  std::string out;
  for (const std::int64_t block : blocks) {
    const std::string bad = differing(loop, expected, order, {form}, block);
    if (!bad.empty()) out += fmt::format("{}, block {}: {}", loop.method.name, block, bad);
  }
  if (widest_form(loop) != form)
    out += fmt::format("{}: widest is {}; ", loop.method.name, ttt::name(widest_form(loop)));
  const std::string others = differing(loop, expected, order, {FormChoice::primal, FormChoice::dual});
  return out + (others.empty() ? others : loop.method.name + ": " + others);
}
std::vector<Method> joined(std::vector<Method> a, const std::vector<Method>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
// 1, 2, .. time + 2
std::vector<std::int64_t> lengths(const Sizes& s) {
  std::vector<std::int64_t> out;
  for (std::int64_t i = 1; i <= s.time + 2; ++i) out.push_back(i);
  return out;
}

// phi(x; theta) W, theta an outer parameter.
NamedLearner featured(const Sizes& s, bool against_v) {
  const auto make = [=](const Params& p) -> std::unique_ptr<ttt::Learner> {
    const Tensor theta = p("theta", {s.heads, s.dim, s.dim});
    const auto f = [=](const Weights& w, Tensor x) {
      return matmul(l2_norm(gelu_tanh(matmul(x, theta))), w["W"]);
    };
    return std::make_unique<FormulaLearner>(Weights{matrix("W", p("W", {s.heads, s.dim, s.dim}))}, f,
                                            against_v ? against(f) : FormulaLearner::Loss());
  };
  return {"phi(x) W", make};
}
NamedLearner transposed_matrix(const Sizes& s) {
  return formula(
      "x W'",
      [=](const Params& p) {
        return Weights{matrix("W", p("W", {s.heads, s.dim, s.dim}))};
      },
      [](const Weights& w, Tensor x) { return matmul(x, w["W"], {.b = true}); });
}
// |k W - v|^2 with a weight of each token.
NamedLearner weighted(const Sizes& s) {
  return matrix_of(s, [](const Weights& w, Tensor k, Tensor v) {
    return sum(sigmoid(sum(k, {-1}, kKeep)) * square(matmul(k, w["W"]) - v), {-1}, kKeep);
  });
}

// Why the factors of a gradient are not the same whatever has been learnt.
std::string why_not_constant(const LoopCase& loop) {
  std::string out;
  trace_case(loop, [&](const TracedCase& c) {
    const ttt::DerivedLearner found(c.learner, c.loop.policy, ttt::State::start(c.learner, c.start), c.views);
    out = found.why_not(ttt::Property::constant_factors);
    return Tensors{c.views.k};
  });
  return out;
}

}  // namespace

// ---- parallel ----

TEST_SUITE("slow") {
  TEST_CASE(
      "parallel = dual = primal = by hand to order 2, for every length of block and every linear step") {
    for (const Method& method : joined(linear_methods(kSizes), feature_methods(kSizes)))
      for (const std::int64_t chunk : {1, 3}) {
        CHECK(wrong({hebbian(kSizes), method, {.chunk = chunk}, kSizes}, FormChoice::parallel,
                    lengths(kSizes), 2) == "");
      }
  }
  TEST_CASE("WY = dual = primal = by hand to order 2, for every length of block and every linear step") {
    for (const Method& method :
         joined(linear_methods(kSizes), joined(feature_methods(kSizes), moving_methods())))
      CHECK(wrong({matrix_of(kSizes), method, {.chunk = 1}, kSizes}, FormChoice::wy, lengths(kSizes), 2) ==
            "");
  }
}

TEST_CASE(
    "parallel: keys behind fixed features, the last layer of SwiGLU, biases, read before write, ascent") {
  const Sizes sizes{.batch = 2, .heads = 3, .time = 9, .dim = 4};
  const std::vector<std::int64_t> blocks{1, 4, 9, 64};
  const std::vector<Method> linear = linear_methods(sizes);
  for (const std::size_t i : {0U, 7U, 10U}) {
    CHECK(wrong({featured(sizes, true), linear[i], {.chunk = 2}, sizes}, FormChoice::parallel, blocks, 1) ==
          "");
    CHECK(wrong({swiglu(sizes), linear[i], {.chunk = 4, .trained = {"W1"}}, sizes}, FormChoice::parallel,
                blocks, 1) == "");
    CHECK(wrong({hebbian(sizes), linear[i], {.chunk = 1, .read = Read::before_write, .ascent = true}, sizes},
                FormChoice::parallel, blocks, 1) == "");
    const NamedLearner biased = formula(
        "x W + b",
        [](const Params& p) {
          return Weights{matrix("W", p("W", {3, 4, 4})), row("b", p("b", {3, 1, 4}))};
        },
        [](const Weights& w, Tensor x) { return matmul(x, w["W"]) + w["b"]; },
        against([](const Weights& w, Tensor x) { return matmul(x, w["W"]) + w["b"]; }));
    CHECK(wrong({biased, linear[i], {.chunk = 1, .query_is_key = true}, sizes}, FormChoice::parallel, blocks,
                1) == "");
  }
  for (const Method& method : moving_methods())  // the point of a gradient that does not depend on it
    CHECK(wrong({hebbian(sizes), method, {.chunk = 1}, sizes}, FormChoice::parallel, blocks, 1) == "");
}
TEST_CASE("parallel: gates of each feature with values of another width, and W used transposed") {
  const Sizes wide{.batch = 1, .heads = 2, .time = 7, .dim = 4, .value_dim = 3};
  const Sizes even{.batch = 1, .heads = 2, .time = 7, .dim = 4};
  const NamedLearner turned = formula(
      "x W'",
      [=](const Params& p) {
        return Weights{matrix("W", p("W", {2, 4, 4}))};
      },
      [](const Weights& w, Tensor x) { return matmul(x, w["W"], {.b = true}); },
      against([](const Weights& w, Tensor x) { return matmul(x, w["W"], {.b = true}); }));
  for (const Method& method : feature_methods(wide))
    for (const Read read : {Read::after_write, Read::before_write}) {
      CHECK(wrong({hebbian(wide), method, {.chunk = 2, .read = read}, wide}, FormChoice::parallel, {3, 7},
                  1) == "");
      CHECK(wrong({turned, method, {.chunk = 1, .read = read}, even}, FormChoice::parallel, {3, 7}, 1) == "");
    }
}

TEST_CASE("the reason why there is no parallel form is the weight that a gradient depends on") {
  const Policy online{.chunk = 1};
  CHECK(why_not_constant({hebbian(kSizes), sgd(), online, kSizes}) == "");
  CHECK(why_not_constant({featured(kSizes, true), sgd(), online, kSizes}) == "");
  CHECK(why_not_constant({matrix_of(kSizes), sgd(), online, kSizes}) ==
        "the gradient of 'W' depends on 'W' (itself): it has to be taken anew after every write");
  CHECK(why_not_constant({swiglu({}), sgd(), online, {}}) ==
        "the gradient of 'W0' depends on 'W0' (itself): it has to be taken anew after every write");
  for (const char* name :
       {"W0", "W2"})  // with one gate held, the other's gradient still depends on that other, or not at all
    CHECK(refusal({swiglu({}), sgd(), {.chunk = 1, .trained = {name}}, {}}, FormChoice::parallel).empty() ==
          (name[1] == '2'));
  CHECK(refusal({swiglu({}), sgd(), {.chunk = 1, .trained = {"W1"}}, {}}, FormChoice::parallel) == "");
  CHECK(
      contains(refusal({swiglu({}), sgd(), {.chunk = 1, .trained = {"W1", "W2"}}, {}}, FormChoice::parallel),
               "(another learning weight)"));
  CHECK(why_not_constant({ttt_linear(kSizes), sgd(), online, kSizes}) ==
        "the gradient of 'W1' depends on 'W1' (itself): it has to be taken anew after every write");
  const LoopCase deep{swiglu({}), sgd(), online, {}};
  CHECK(contains(refusal(deep, FormChoice::parallel),
                 "parallel is impossible: the gradient of 'W0' depends on 'W0'"));
}

// ---- WY ----

// What the weight gives reaches the gradient along two paths.
NamedLearner damped(const Sizes& s) {
  return matrix_of(s, [](const Weights& w, Tensor k, Tensor v) {
    const Tensor y = matmul(k, w["W"]);
    return sum(0.5 * square(y - v) + 0.1 * square(y), {-1}, kKeep);
  });
}

TEST_CASE("WY: weighted squares, W used transposed, fixed features, other widths, read before write, ascent" *
          doctest::test_suite("slow")) {
  const Sizes sizes{.batch = 2, .heads = 2, .time = 7, .dim = 4},
      wide{.batch = 2, .heads = 2, .time = 7, .dim = 4, .value_dim = 3};
  const std::vector<std::int64_t> blocks{1, 3, 4, 7, 64};
  for (const Method& method : linear_methods(sizes)) {
    CHECK(wrong({weighted(sizes), method, {.chunk = 1}, sizes}, FormChoice::wy, blocks, 1) == "");
    CHECK(wrong({transposed_matrix(sizes), method, {.chunk = 1}, sizes}, FormChoice::wy, blocks, 1) == "");
    CHECK(wrong({featured(sizes, false), method, {.chunk = 1}, sizes}, FormChoice::wy, {4}, 1) == "");
    CHECK(wrong({damped(sizes), method, {.chunk = 1}, sizes}, FormChoice::wy, {3}, 1) == "");
    CHECK(wrong({matrix_of(wide), method, {.chunk = 1, .read = Read::before_write, .ascent = true}, wide},
                FormChoice::wy, {3}, 1) == "");
  }
  for (const Method& method : feature_methods(wide)) {
    CHECK(wrong({weighted(wide), method, {.chunk = 1}, wide}, FormChoice::wy, blocks, 1) == "");
    CHECK(wrong({matrix_of(wide), method, {.chunk = 1, .read = Read::before_write}, wide}, FormChoice::wy,
                {3}, 1) == "");
  }
  for (const Method& method : moving_methods()) {
    CHECK(wrong({weighted(sizes), method, {.chunk = 1}, sizes}, FormChoice::wy, blocks, 1) == "");
    if (!contains(method.name, "feature"))
      CHECK(wrong({transposed_matrix(sizes), method, {.chunk = 1}, sizes}, FormChoice::wy, {3}, 1) == "");
  }
  // What is asked need not be what is learnt.
  const NamedLearner bent = formula(
      "tanh(x W) W', learnt as x W",
      [](const Params& p) {
        return Weights{matrix("W", p("W", {2, 4, 4}))};
      },
      [](const Weights& w, Tensor x) { return matmul(tanh(matmul(x, w["W"])), w["W"], {.b = true}); },
      [](const Weights& w, Tensor k, Tensor v) {
        return 0.5 * sum(square(matmul(k, w["W"]) - v), {-1}, kKeep);
      });
  for (const Method& method : joined(feature_methods(sizes), moving_methods()))
    CHECK(wrong({bent, method, {.chunk = 1}, sizes}, FormChoice::wy, {3}, 2) == "");
}
TEST_CASE("WY without rates, with a rate of the weight, to order 2") {
  for (const std::vector<GateInput>& rates :
       {std::vector<GateInput>{}, {{"rate.W"}}, {{"rate"}, {"rate.W"}}}) {
    LoopCase loop{matrix_of(kSizes), linear_methods(kSizes)[7], {.chunk = 1}, kSizes, rates};
    CHECK(wrong(loop, FormChoice::wy, {2, 5}, 2) == "");
  }
}
TEST_CASE("W used transposed, with numbers of each input feature: no solve gives that, and WY says so") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 6, .dim = 4};
  std::vector<Method> methods = feature_methods(sizes);
  methods.push_back(moving_methods()[1]);
  for (const Method& method : methods) {
    CAPTURE(method.name);
    const LoopCase loop{transposed_matrix(sizes), method, {.chunk = 1}, sizes};
    CHECK(contains(refusal(loop, FormChoice::wy), "wy is impossible"));
    CHECK(contains(refusal(loop, FormChoice::wy), "feature"));
    CHECK(wrong(loop, FormChoice::dual, {4}, 1) == "");
  }
}
TEST_CASE(
    "WY is refused for a bias, several uses, a nonlinearity, a factor per feature, held uses and chunks") {
  const Sizes& s = kSizes;
  const auto why = [&](const NamedLearner& named, const Policy& policy = {.chunk = 1}) {
    return refusal({named, sgd(), policy, s}, FormChoice::wy);
  };
  const auto one = [](const Params& p) { return Weights{matrix("W", p("W", {2, 4, 4}))}; };
  const auto linear = [](const Weights& w, Tensor x) { return matmul(x, w["W"]); };
  const auto squares = [](Tensor e) { return 0.5 * sum(square(e), {-1}, kKeep); };
  CHECK(contains(why(perceptron("x W + b", 2, {4, 4}, tanh)), "there are 2 weights with 1 uses"));
  CHECK(contains(why(perceptron("two", 2, {4, 4, 4}, tanh)), "there are 4 weights with 2 uses"));
  CHECK(contains(why(formula("twice", one,
                             [](const Weights& w, Tensor x) { return matmul(matmul(x, w["W"]), w["W"]); })),
                 "there are 1 weights with 2 uses"));
  CHECK(
      contains(why(formula("tanh", one, [](const Weights& w, Tensor x) { return tanh(matmul(x, w["W"])); })),
               "[wy] the gradient is not one number a token"));
  CHECK(contains(why(ttt_linear(s)), "[wy]"));
  CHECK(contains(why(formula("per feature", one, linear,
                             [=](const Weights& w, Tensor k, Tensor v) {
                               return squares((matmul(k, w["W"]) - v) * k);
                             })),
                 "the gradient scales each feature by a factor of its own"));
  CHECK(contains(why(formula("metric", one, linear,
                             [=](const Weights& w, Tensor k, Tensor v) {
                               const Tensor e = matmul(k, w["W"]) - v;
                               return 0.5 * sum(e * matmul(e, constant(random(f64({4, 4}), 3))), {-1}, kKeep);
                             })),
                 "[wy] the gradient is not one number a token"));
  CHECK(contains(why(formula("quartic", one, linear,
                             [=](const Weights& w, Tensor k, Tensor v) {
                               return square(squares(matmul(k, w["W"]) - v));
                             })),
                 "[wy] the gradient is not one number a token"));
  CHECK(contains(why(formula("cubic", one, linear,
                             [=](const Weights& w, Tensor k, Tensor v) {
                               const Tensor e = matmul(k, w["W"]) - v;
                               return sum(e * e * e, {-1}, kKeep);
                             })),
                 "it multiplies two values that depend on the weight"));
  CHECK(contains(why(formula("sum", one, linear,
                             [=](const Weights& w, Tensor k, Tensor v) {
                               return square(sum(matmul(k, w["W"]), {-1}, kKeep)) -
                                      sum(matmul(k, w["W"]) * v, {-1}, kKeep);
                             })),
                 "[wy] the gradient is not one number a token"));
  CHECK(contains(why(formula("held", one, linear,
                             [=](const Weights& w, Tensor k, Tensor v) {
                               return squares(matmul(k, w["W"]) - matmul(v, w.held("W")));
                             })),
                 "there are 1 weights with 2 uses"));
  CHECK(contains(why(matrix_of(s), {.chunk = 2}), "there is nothing to solve"));
  CHECK(contains(why(matrix_of(s), {.chunk = 1, .meta = Policy::Meta::first_order}), "meta-gradient"));
  CHECK(contains(why(matrix_of(s), {.chunk = 1, .update = Policy::Update::per_chunk}),
                 "wy is for a step per token"));
  LoopCase placed{matrix_of(s), sgd(), {.chunk = 1}, s};
  placed.position = true;
  CHECK(contains(refusal(placed, FormChoice::wy), "position rates"));
  CHECK(contains(refusal(placed, FormChoice::parallel), ""));
}
TEST_CASE("a learner whose gradient is a factor per feature in disguise is not solved for") {
  // Weights of the features that are the same in every row, or equal by coincidence of sizes.
  const auto loss = [](Tensor gain) {
    return [gain](const Weights& w, Tensor k, Tensor v) {
      return 0.5 * sum(gain * square(matmul(k, w["W"]) - v), {-1}, kKeep);
    };
  };
  const Sizes sizes{.batch = 1, .heads = 4, .time = 4, .dim = 4};
  const auto with_gain = [&](Shape shape) {
    return NamedLearner{"gain", [=](const Params& p) -> std::unique_ptr<ttt::Learner> {
                          return std::make_unique<FormulaLearner>(
                              Weights{matrix("W", p("W", {4, 4, 4}))},
                              [](const Weights& w, Tensor x) { return matmul(x, w["W"]); },
                              loss(exp(p("gain", shape))));
                        }};
  };
  CHECK(contains(refusal({with_gain({4}), sgd(), {.chunk = 1}, sizes}, FormChoice::wy), "factor of its own"));
  CHECK(contains(refusal({with_gain({4, 1, 4}), sgd(), {.chunk = 1}, sizes}, FormChoice::wy),
                 "factor of its own"));
  CHECK(wrong({with_gain({4, 1, 1}), sgd(), {.chunk = 1}, sizes}, FormChoice::wy, {3}, 2) == "");
  CHECK(wrong({with_gain({1}), sgd(), {.chunk = 1}, sizes}, FormChoice::wy, {3}, 2) == "");
}
