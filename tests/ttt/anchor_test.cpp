// The promise: the anchor of an inner optimiser pulls a weight back to where it started, as much as the Fisher estimate
// says, in every form that is possible; without Fisher information the step stays linear.
#include <cmath>

#include "tests/ttt/methods.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using ttt::Anchor;
using ttt::gate;
using Update = Policy::Update;

namespace {

const Sizes kSizes{.batch = 1, .heads = 2, .time = 6, .dim = 4};

// W <- keep W - g - strength F (W - anchor), by hand; F is 1 or the mean of squares.
Method anchored(Anchor options, bool momentum = false) {
  return {"anchored", {{"pull"}, {"keep"}}, [=](const Params&) {
            Hand hand;
            hand.start = [=](Tensor w) {
              Tensors s{w};
              if (momentum) s.push_back(nothing(w));
              s.push_back(w);
              if (options.fisher_memory > 0) s.push_back(nothing(w));
              return s;
            };
            hand.step = [=](Tensors& s, Tensor g, const Now& now) {
              const std::size_t at = momentum ? 2 : 1;
              const Tensor found = s[0];
              Tensor weight = now("pull");
              if (options.fisher_memory > 0) {
                s[at + 1] = options.fisher_memory * s[at + 1] + (1 - options.fisher_memory) * g * g;
                weight = weight * s[at + 1];
              }
              if (momentum) g = s[1] = 0.7 * s[1] + g;
              s[0] = now("keep") * found - g - weight * (found - s[at]);
              if (options.follow > 0) s[at] = s[at] + options.follow * (s[0] - s[at]);
            };
            InnerOptimizer step;
            if (momentum) step.momentum(0.7);
            return std::pair(step.keep(gate("keep")).anchor(gate("pull"), options), hand);
          }};
}

std::string wrong(const LoopCase& loop, const std::vector<FormChoice>& forms) {
  return differing(loop, numbers(loop, by_hand(), 2), 2, forms);
}

// |W_end - W_start|^2 of all weights, and the outputs, with a pull of this strength.
std::pair<double, Array> moved(const InnerOptimizer& optimizer) {
  const Method method{"given", {}, [&](const Params&) { return std::pair(optimizer, Hand()); }};
  const LoopCase loop{perceptron("two layers", 2, {4, 6, 4}, tanh), method, {.chunk = 2}, kSizes};
  const Function f = trace_case(loop, [](const TracedCase& c) {
    const InnerLoopResult r = ttt::train_along(c.learner, c.start, c.views, {.policy = c.loop.policy});
    Tensor total;
    for (std::size_t i = 0; i < c.start.size(); ++i)
      accumulate(total, sum(square(r.last().at(i).value - c.start.at(i).value)));
    return Tensors{total, r.output};
  });
  std::vector<Array> in;
  for (std::size_t i = 0; i < f.inputs().size(); ++i) in.push_back(random(f.input_spec(i), 40 + i));
  const Arrays out = f(in);
  return {out[0].item(), out[1]};
}

}  // namespace

TEST_CASE(
    "an anchor without Fisher information is a linear step: dual, wy and primal are the loop by hand, to order 2") {
  for (const Anchor options : {Anchor{}, Anchor{.follow = 0.25}}) {
    CAPTURE(options.follow);
    const NamedLearner deep = perceptron("two layers", 2, {4, 5, 4}, tanh);
    CHECK(wrong({deep, anchored(options), {.chunk = 4}, kSizes}, {FormChoice::primal, FormChoice::dual}) ==
          "");
    CHECK(wrong({matrix_of(kSizes), anchored(options, true), {.chunk = 1}, kSizes},
                {FormChoice::primal, FormChoice::dual, FormChoice::wy}) == "");
    CHECK(wrong({hebbian(kSizes), anchored(options), {.chunk = 1}, kSizes},
                {FormChoice::primal, FormChoice::parallel}) == "");
  }
}

TEST_CASE("a Fisher-weighted anchor is the loop by hand, to order 2; with a step per token it is primal") {
  for (const Anchor options : {Anchor{.fisher_memory = 0.9}, Anchor{.fisher_memory = 0.5, .follow = 0.25}}) {
    CAPTURE(options.follow);
    const LoopCase online{matrix_of(kSizes), anchored(options, true), {.chunk = 2}, kSizes};
    CHECK(wrong(online, {FormChoice::primal}) == "");
    CHECK(contains(refusal(online, FormChoice::dual), "in 'anchor'"));
    const LoopCase chunks{perceptron("two layers", 2, {4, 5, 4}, tanh),
                          anchored(options),
                          {.chunk = 2, .update = Update::per_chunk},
                          kSizes};
    CHECK(wrong(chunks, {FormChoice::primal, FormChoice::dual}) == "");
  }
}

TEST_CASE("chunks are taken at once with an anchor that stays, and not where its weight or place changes") {
  const auto loop = [](Anchor options) {
    return LoopCase{hebbian(kSizes), anchored(options), {.chunk = 2, .update = Update::per_chunk}, kSizes};
  };
  CHECK(wrong(loop({}), {FormChoice::chunk_parallel, FormChoice::parallel, FormChoice::dual}) == "");
  CHECK(contains(refusal(loop({.fisher_memory = 0.9}), FormChoice::chunk_parallel), "'Fisher'"));
  CHECK(contains(refusal(loop({.follow = 0.5}), FormChoice::chunk_parallel), "'anchor'"));
}

TEST_CASE("off and on: a pull of 0 changes nothing, a stronger one holds the weights nearer to their start") {
  const auto [off, output] = moved(InnerOptimizer());
  for (const Anchor options : {Anchor{}, Anchor{.fisher_memory = 0.9}}) {
    CAPTURE(options.fisher_memory);
    const auto [zero, same] = moved(InnerOptimizer().anchor(0.0, options));
    CHECK(relative_error(same, output) < 1e-14);
    CHECK(zero == doctest::Approx(off).epsilon(1e-13));
    const double weak = moved(InnerOptimizer().anchor(0.1, options)).first,
                 strong = moved(InnerOptimizer().anchor(0.4, options)).first;
    CHECK(weak < 0.999 * off);
    CHECK(strong < weak);
  }
}

TEST_CASE("wrong use: an anchor's shares lie in [0, 1)") {
  CHECK(contains(message_of<ConfigError>([] { InnerOptimizer().anchor(0.1, {.fisher_memory = 1}); }),
                 "fisher_memory is 1"));
  CHECK(contains(message_of<ConfigError>([] { InnerOptimizer().anchor(0.1, {.follow = -0.5}); }),
                 "follow -0.5"));
}

TEST_CASE("an anchor that follows goes after the weight as it is read after the step: normalised") {
  constexpr double kPull = 0.1, kFollow = 0.25;
  const std::vector<double> start{1, 2, 3, 4}, g{0.5, -0.3, 0.2, 0.7};
  const auto column_norm = [](const std::vector<double>& w, std::size_t i) {
    return std::hypot(w[i % 2], w[2 + i % 2]);
  };
  for (const bool master : {false, true}) {
    CAPTURE(master);
    InnerOptimizer optimizer;
    optimizer.anchor(kPull, {.follow = kFollow});
    if (master) optimizer.prenorm(1e-12);
    else optimizer.weight_norm(1e-12);
    const Function f = trace(
        [&](Tensor w, Tensor gradient) {
          const ttt::FastWeight weight{"W", ttt::WeightKind::matrix, w};
          Tensors state{w}, out;
          for (const ttt::FastWeight& slot : optimizer.slots(weight)) state.push_back(slot.value);
          for (int step = 0; step < 3; ++step) {
            state = optimizer.step(state, gradient, {}, weight);
            out.push_back(state[0]);
            out.push_back(state[1]);
          }
          return out;
        },
        f64({2, 2}), f64({2, 2}));
    const Arrays found = f({Array::of(start, {2, 2}), Array::of(g, {2, 2})});
    std::vector<double> w = start, stepped = start, anchor = start;
    for (std::size_t step = 0; step < 3; ++step) {
      CAPTURE(step);
      std::vector<double> next(4);
      for (std::size_t i = 0; i < 4; ++i) next[i] = stepped[i] - g[i] - kPull * (stepped[i] - anchor[i]);
      for (std::size_t i = 0; i < 4; ++i) w[i] = next[i] / column_norm(next, i) * column_norm(start, i);
      for (std::size_t i = 0; i < 4; ++i) anchor[i] += kFollow * (w[i] - anchor[i]);
      stepped = master ? next : w;
      CHECK(relative_error(found[2 * step], Array::of(w, {2, 2})) < 1e-10);
      CHECK(relative_error(found[2 * step + 1], Array::of(anchor, {2, 2})) < 1e-10);
    }
  }
}
