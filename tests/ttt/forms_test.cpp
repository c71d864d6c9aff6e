// The promise: the dual form that is derived from a learner's trace gives the numbers of the primal form, and
// both give those of the inner loop done by hand; as values and as derivatives with respect to everything.
#include "tests/ttt/named_learners.h"
#include "ttt/compose.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

constexpr double kTolerance = 1e-12;

Arrays run(const Function& f) { return f(numbers_for(f)); }

Function derivatives_in(FormChoice form, const NamedLearner& named, const Sizes& sizes, int order) {
  return derivatives(named, sizes, along({.policy = {.chunk = sizes.mini_batch}, .form = form}), order);
}

// Worst error of the dual form against the primal form, over values and derivatives up to `order`.
double dual_error(const NamedLearner& named, const Sizes& sizes, int order) {
  return worst_error(run(derivatives_in(FormChoice::dual, named, sizes, order)),
                     run(derivatives_in(FormChoice::primal, named, sizes, order)));
}

void check_dual(const Sizes& sizes, int order) {
  for (const NamedLearner& named : named_learners(sizes)) {
    CAPTURE(named.name);
    CHECK(dual_error(named, sizes, order) < kTolerance);
  }
}

}  // namespace

TEST_CASE("both forms are the inner loop done by hand, at value and order 1") {
  const Sizes sizes;
  for (const NamedLearner& named : named_learners(sizes)) {
    CAPTURE(named.name);
    const Arrays expected = run(derivatives(named, sizes, by_hand(sizes.mini_batch), 1));
    CHECK(worst_error(run(derivatives_in(FormChoice::primal, named, sizes, 1)), expected) < kTolerance);
    CHECK(worst_error(run(derivatives_in(FormChoice::dual, named, sizes, 1)), expected) < kTolerance);
  }
}

TEST_CASE("dual = primal up to order 2: two mini-batches and a part of one") { check_dual({}, 2); }
TEST_CASE("dual = primal up to order 2: online, a mini-batch of one token") {
  check_dual({.time = 5, .mini_batch = 1}, 2);
}
TEST_CASE("dual = primal up to order 2: batch gradient descent, one mini-batch") {
  check_dual({.time = 4, .mini_batch = 4}, 2);
}
TEST_CASE("dual = primal up to order 2: a sequence shorter than the mini-batch") {
  check_dual({.time = 3, .mini_batch = 4}, 2);
}

TEST_CASE("dual = primal up to order 3 for the published learners") {
  const Sizes sizes{.batch = 1, .heads = 2, .time = 5, .dim = 4, .mini_batch = 2};
  CHECK(dual_error(ttt_linear(sizes), sizes, 3) < kTolerance);
  CHECK(dual_error(ttt_mlp(sizes), sizes, 3) < kTolerance);
}

TEST_CASE("a loss that is not the prediction's, and values wider than keys: dual = primal") {
  const Sizes sizes{.value_dim = 5};
  const NamedLearner named = formula(
      "two heads on one trunk",
      [](const Params& p) {
        return Weights{matrix("W", p("W", {3, 4, 6})), matrix("U", p("U", {3, 6, 5})),
                       row("scale", p("scale", {3, 1, 6}))};
      },
      [](const Weights& w, Tensor x) { return matmul(tanh(matmul(x, w["W"])), w["U"]); },
      [](const Weights& w, Tensor k, Tensor v) {
        const Tensor hidden = tanh(matmul(k, w["W"])) * w["scale"];
        return sum(square(matmul(hidden, w["U"]) - v), {-1}, kKeep) + sum(square(hidden), {-1}, kKeep);
      });
  CHECK(dual_error(named, sizes, 2) < kTolerance);
}

TEST_CASE("read before write: dual = primal, and far from read after write") {
  const auto derivatives_with = [](const NamedLearner& named, FormChoice form, ttt::Policy::Read when) {
    return run(derivatives(named, {}, along({.policy = {.chunk = 4, .read = when}, .form = form}), 1));
  };
  using Read = ttt::Policy::Read;
  for (const NamedLearner& named : named_learners()) {
    CAPTURE(named.name);
    const Arrays before = derivatives_with(named, FormChoice::primal, Read::before_write);
    CHECK(worst_error(derivatives_with(named, FormChoice::dual, Read::before_write), before) < kTolerance);
    CHECK(worst_error(derivatives_with(named, FormChoice::dual, Read::after_write), before) > 0.05);
  }
}

TEST_CASE(
    "the dual form is far smaller than the loop by hand, and needs a fraction of the memory of primal") {
  const Sizes sizes{.time = 32, .dim = 16, .mini_batch = 16};
  for (const NamedLearner& named : {ttt_linear(sizes), ttt_mlp(sizes)}) {
    CAPTURE(named.name);
    const Function primal = derivatives_in(FormChoice::primal, named, sizes, 2),
                   dual = derivatives_in(FormChoice::dual, named, sizes, 2);
    CHECK(dual.live_nodes() < derivatives(named, sizes, by_hand(16), 2).live_nodes() / 10);
    CHECK(dual.plan().stats().arena_bytes < primal.plan().stats().arena_bytes / 2);
  }
}

TEST_SUITE("slow") {
  TEST_CASE("losses before and after each step, and at the first weights, are those computed by hand") {
    const Sizes sizes;
    const auto losses = [&](const NamedLearner& named, const Run& run_it) {
      return run(reading(named, sizes, [&](const Reading& r) {
        const InnerLoopResult out = run_it(r.learner, r.start, r.views);
        const Tensors all{out.loss_initial, out.loss_before, out.loss_after};
        Tensors both = all;
        for (const Tensor& g : grad(outer_loss(all), r.inputs, {.allow_zero = true})) both.push_back(g);
        return both;
      }));
    };
    for (const NamedLearner& named : named_learners(sizes)) {
      CAPTURE(named.name);
      Arrays expected = losses(named, by_hand(sizes.mini_batch));
      expected.erase(expected.begin() + 5);  // q has no part in the losses
      for (const FormChoice form : {FormChoice::primal, FormChoice::dual}) {
        Arrays found =
            losses(named, along({.policy = {.chunk = sizes.mini_batch}, .form = form, .track_loss = true}));
        CHECK(found[0].shape() == Shape{sizes.batch, sizes.heads, sizes.time});
        found.erase(found.begin() + 5);
        CHECK(worst_error(found, expected) < kTolerance);
      }
    }
  }
}

TEST_CASE("a step of small rate lowers the loss of its own token") {
  const Sizes sizes{.mini_batch = 1};
  for (const NamedLearner& named : named_learners(sizes)) {
    CAPTURE(named.name);
    const Function f = reading(named, sizes, [&](const Reading& r) {
      Views small = r.views;
      small.gates["rate"] = small.gates["rate"] * 0.01;
      const InnerLoopResult out = ttt::train_along(
          r.learner, r.start, small, {.policy = {.chunk = sizes.mini_batch}, .track_loss = true});
      return Tensors{out.loss_before - out.loss_after};
    });
    for (double fall : run(f)[0].to_vector()) CHECK(fall > 0);
  }
}

// What a position rate multiplies is the sum of the steps; the difference of the weights has lost it at this rate.
TEST_CASE("the derivative by a position rate has all its digits, however small the steps are") {
  constexpr std::int64_t kTime = 4, kDim = 2;
  constexpr double kRate = 1e-12;
  const Spec rows{DType::f64, {1, 1, kTime, kDim}};
  const std::vector<Spec> specs{rows, rows, rows, rows, {DType::f64, {kTime}}, {DType::f64, {1, kDim, kDim}}};
  const Arrays in = random(specs, 3);  // q, k, v, cotangent, position, W
  const auto at = [&](std::size_t of, std::int64_t t, std::int64_t i) { return in[of].at(t * kDim + i); };
  for (const double beta : {0.0, 0.5}) {
    std::vector<double> expected;
    double momentum[kDim][kDim] = {}, way[kDim][kDim] = {};
    for (std::int64_t t = 0; t < kTime; ++t) {
      double sum = 0;
      for (std::int64_t i = 0; i < kDim; ++i)
        for (std::int64_t j = 0; j < kDim; ++j) {
          momentum[i][j] = beta * momentum[i][j] + kRate * at(1, t, i) * at(2, t, j);
          way[i][j] += momentum[i][j];
          sum += at(0, t, i) * way[i][j] * at(3, t, j);
        }
      expected.push_back(sum);
    }
    for (const FormChoice form : {FormChoice::primal, FormChoice::dual}) {
      CAPTURE(ttt::name(form));
      const Arrays out = trace(
          [&](const Tensors& t) {
            const ttt::Composed learner(
                {"x W",
                 {ttt::matrix("W", t[5])},
                 [](const Weights& w, Tensor x) { return matmul(x, w["W"]); }},
                ttt::inner_product(),
                beta > 0 ? ttt::InnerOptimizer().momentum(beta) : ttt::InnerOptimizer());
            const Views views{t[0], t[1], t[2], {{"rate", full(DType::f64, {1, 1, kTime, 1}, kRate)}}, t[4]};
            const InnerLoopResult r = ttt::train_along(learner, ttt::for_batch(learner.init(), 1), views,
                                                       {.policy = {.chunk = kTime}, .form = form});
            return grad(sum(r.output * t[3]), {t[4]});
          },
          specs)(in);
      CHECK(relative_error(out[0], Array::of(expected, {kTime})) < 1e-14);
    }
  }
}
