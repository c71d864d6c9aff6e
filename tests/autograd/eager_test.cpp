// Graphs that run as they are written: the same numbers as a plan, and where the first NaN appears.
#include <cmath>

#include "tests/autograd/deriving.h"
#include "tests/fuzz/compare.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

void check_eager_is_traced(const std::vector<Spec>& specs, const TraceFn& fn) {
  const Arrays at = random(specs, 21), eager = fuzz::run_eagerly(fn, at);
  const Function f = trace(fn, specs);
  CHECK(same_bits(f.plan({.simplify = false}).run(at), eager));
  CHECK(max_error(f(at), eager) < 1e-13);
}

}  // namespace

TEST_CASE("An eager graph has the numbers of the traced one, bit for bit") {
  check_eager_is_traced({f64({3, 2}), f64({2})}, [](const Tensors& in) -> Tensors {
    const Tensor y =
        softmax(matmul(tanh(in[0] * in[1]), transpose(in[0])), 1) + exp(sum(in[0] * in[0], {1}, kKeep));
    const Tensors g = grad(sum(square(y)), in);
    return {y, g[0], g[1], hvp(sum(square(y)), {in[1]}, {in[1]})[0], jvp({y}, {in[0]}, {in[0]})[0]};
  });
}

TEST_CASE("Eager scans and custom rules have the numbers of the traced ones, bit for bit") {
  for (int order = 0; order <= 2; ++order)
    check_eager_is_traced(learner_specs(4), [&](const Tensors& in) -> Tensors {
      const Tensor scaled = custom_vjp(
          [](const Tensors& x) { return sin(x[0]); },
          [](const Tensors& x, Tensor, Tensor ct) -> Tensors { return {ct * cos(x[0])}; }, {in[3]});
      const Tensor y = learner({in[0], in[1], in[2], scaled, in[4]}, as_scan, {.checkpoint_every = 2});
      return order == 0 ? Tensors{y} : grad(directional(y, in, order - 1), in);
    });
}

TEST_CASE("An eager graph needs no open scope, scans and zeros included") {
  Graph g(GraphMode::eager);
  const Tensor w = g.input(Array::of({1, 2}, {2})), x = g.input(Array::of({1, 2, 3, 4}, {2, 2})),
               unused = g.input(Array::scalar(1));
  const Tensor y = scan(
                       [](const Tensors& c, const Tensors& now) -> StepOutput {
                         return {{c[0] * now[0]}, {}};
                       },
                       {w}, {x})
                       .carries[0];
  const Tensors d = grad(sum(y), {w, unused}, {.allow_zero = true});
  CHECK(g.node(d[0].id()).value.to_vector() == std::vector<double>{3, 8});
  CHECK(g.node(d[1].id()).value.item() == 0);
  CHECK(eval(y).to_vector() == std::vector<double>{3, 16});
}

TEST_CASE("An input of an eager graph that has no numbers is named by the first op that reads it") {
  Graph g(GraphMode::eager);
  const Tensor x = g.input(f64({3}), "x");
  const std::string message = message_of<GraphError>([&] { x* x; });
  CHECK_MESSAGE(contains(message, "has no numbers yet"), message);
  CHECK(contains(message, "'x'"));
}

TEST_CASE("check_finite stops at the first op whose output is not finite, and names it") {
  Graph g(GraphOptions{.mode = GraphMode::eager, .check_finite = true});
  const GraphScope scope(g);
  const Tensor x = g.input(Array::of({1, -1}, {2}));
  const Tensor fine = x * 2.0;
  const std::string why = message_of<ValueError>([&] { exp(sqrt(fine)) * 0.0; });
  CHECK(contains(why, "[sqrt]"));
  CHECK(contains(why, "eager_test.cpp"));
  CHECK(contains(message_of<ValueError>([&] { x / (x - x); }), "[div]"));
}

TEST_CASE("check_finite sees what comes out of a scan") {
  Graph g(GraphOptions{.mode = GraphMode::eager, .check_finite = true});
  const GraphScope scope(g);
  const Tensor w = g.input(Array::of({1e200}, {1}));
  const std::string why = message_of<ValueError>([&] {
    scan(
        [](const Tensors& c, const Tensors&) -> StepOutput {
          return {{square(c[0])}, {}};
        },
        {w}, {}, {.steps = 2});
  });
  CHECK(contains(why, "final"));
}
