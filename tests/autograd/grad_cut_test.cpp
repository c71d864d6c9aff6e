// No silent zero: a derivative that cannot be is an error that names where its path ends.
#include "tests/autograd/deriving.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

struct Sandbox {
  Graph graph;
  GraphScope scope{graph};
  Tensor x = graph.input(f64({3}), "x"), other = graph.input(f64({3}), "other");
  Tensor indices = graph.input(i32({2}), "indices");
};

// What grad says when y does not depend on x.
std::string refusal(Tensor y, Tensor x) {
  return message_of<GradError>([&] { grad(y, {x}); });
}

}  // namespace

TEST_CASE("A gradient that a cut ends is refused, naming the node that cuts") {
  Sandbox s;
  const auto expect = [&](Tensor y, std::vector<std::string> parts) {
    const std::string why = refusal(sum(y * s.other), s.x);
    for (const std::string& part : parts) CHECK_MESSAGE(contains(why, part), why, " lacks ", part);
    CHECK(contains(why, "allow_zero"));
    CHECK(contains(why, "grad_cut_test.cpp"));
  };
  expect(stop_gradient(s.x), {"stop_gradient f64[3]", "stops gradients"});
  expect(sign(s.x), {"sign f64[3]"});
  expect(greater(s.x, 0.5), {"greater f64[3]"});
  expect(cast(cast(s.x, DType::i32), DType::f64), {"cast i32[3]", "integers have no derivative"});
  expect(select(s.x, s.other, 2.0 * s.other), {"select f64[3]", "a mask only chooses"});
  expect(s.other, {"x never meets y"});
  expect(stop_gradient(s.x) + sign(s.x), {"stop_gradient", "sign"});
  CHECK_NOTHROW(grad(sum(stop_gradient(s.x) * s.x), {s.x}));  // one way is enough
}

TEST_CASE("A derivative with respect to an integer is refused") {
  Sandbox s;
  const Tensor rows = gather(reshape(s.x, {3, 1}), s.indices);
  CHECK(contains(refusal(sum(rows), s.indices), "is an integer"));
  CHECK(contains(refusal(sum(cast(s.indices, DType::f64)), s.indices), "is an integer"));
  CHECK_NOTHROW(grad(sum(rows), {s.x}));
}

TEST_CASE("A gradient that a scan's body ends is refused, naming the node inside") {
  Sandbox s;
  const auto loop = [&](const StepFn& step) { return scan(step, {s.other}, {reshape(s.x, {3, 1})}); };
  const ScanResult r = loop([&](const Tensors& c, const Tensors& x) -> StepOutput {
    return {{c[0] * sign(x[0])}, {c[0] + stop_gradient(x[0]), cast(c[0], DType::i32)}};
  });
  CHECK(contains(refusal(sum(r.carries[0]), s.x), "sign f64[1]"));
  CHECK(contains(refusal(sum(r.ys[0]), s.x), "stop_gradient f64[1]"));
  CHECK(contains(refusal(sum(cast(r.ys[1], DType::f64)), s.other), "integers"));
  CHECK_NOTHROW(grad(sum(r.ys[0]), {s.other}));
}

TEST_CASE("A carry that the step forgets has no derivative with respect to its start") {
  Sandbox s;
  const ScanResult r = scan(
      [&](const Tensors& c, const Tensors& x) -> StepOutput {
        return {{s.other * x[0], c[1] * c[0]}, {c[0]}};
      },
      {s.x, s.other}, {reshape(s.x, {3, 1})});
  CHECK_NOTHROW(grad(sum(r.carries[0]), {s.other}));
  const ScanResult forgets = scan(
      [&](const Tensors&, const Tensors&) -> StepOutput {
        return {{s.other}, {}};
      },
      {s.x}, {}, {.steps = 2});
  CHECK(contains(refusal(sum(forgets.carries[0] * s.other), s.x), "does not depend"));
}

TEST_CASE("A value that chooses among its own functions passes no derivative as the one that chooses") {
  const auto slope = [](Tensor x) { return grad(sum(select(x, 2.0 * x, 3.0 * x)), {x}); };
  const Function f = trace([&](Tensor x) { return slope(x); }, f64({3}));
  CHECK(f({Array::of({-1, 0, 2}, {3})})[0].to_vector() == std::vector<double>{2, 3, 2});
}

TEST_CASE("A number is no variable: equal numbers are one node") {
  Sandbox s;
  const Tensor two = constant(Array::scalar(2));
  CHECK(contains(refusal(sum(square(s.x) * two), two), "probe"));
  const Tensor named = probe(two);
  CHECK_NOTHROW(grad(sum(square(s.x) * named), {named}));
}

TEST_CASE(
    "What is made of numbers alone is no variable either: equal ones are one node, whoever wrote them") {
  Sandbox s;
  const Shape three{3};
  const std::vector<std::function<Tensor()>> makers{
      [&] { return zeros(DType::f64, three); }, [&] { return full(DType::f64, three, 0.5); },
      [&] { return cast(iota(DType::i32, three, 0), DType::f64); },
      [&] { return sum(eye(DType::f64, 3), {0}); }};
  for (const auto& make : makers) {
    const Tensor a = make(), b = make();
    CHECK(contains(refusal(sum(s.x * a + 10.0 * b), a), "made of numbers alone"));
    const Tensor here = probe(a), there = probe(b);
    const Tensors g = grad(sum(s.x * here + 10.0 * there), {here, there});
    CHECK(eval(g[1]).to_vector() == std::vector<double>{10, 10, 10});
  }
}

TEST_CASE(
    "In the body of a loop second derivatives by a tensor from outside are found, and what cuts them is named") {
  Sandbox s;
  const Function f = trace(
      [](Tensor w, Tensor c) {
        return scan(
                   [&](const Tensors& carry, const Tensors&) -> StepOutput {
                     const Tensor h = hessian(sum(c * square(w)), w);
                     return {{carry[0] + h}, {}};
                   },
                   {zeros(DType::f64, {2, 2})}, {}, {.steps = 2})
            .carries[0];
      },
      f64({2}), f64({2}));
  CHECK(f({Array::of({1, 2}, {2}), Array::of({3, 5}, {2})})[0].to_vector() ==
        std::vector<double>{12, 0, 0, 20});
  const auto within = [&](const std::function<void(Tensor carry)>& body) {
    scan(
        [&](const Tensors& carry, const Tensors&) -> StepOutput {
          body(carry[0]);
          return {{carry[0]}, {}};
        },
        {s.other}, {}, {.steps = 2});
  };
  within([&](Tensor carry) { CHECK(contains(refusal(sum(carry * sign(s.x)), s.x), "sign f64[3]")); });
}

TEST_CASE("Zeros are given when asked for, and only then") {
  Sandbox s;
  const GradOptions zero{.allow_zero = true};
  const Tensors g = grad(sum(square(s.x)), {s.x, s.other}, zero);
  CHECK(g[1].spec() == s.other.spec());
  CHECK(eval(g[1]).to_vector() == std::vector<double>{0, 0, 0});
  CHECK(jvp({s.x, sin(s.other)}, {s.x}, {s.x}, zero)[1].spec() == s.other.spec());
  CHECK_NOTHROW(vjp({s.x}, {s.x}, {s.other}, zero));
  CHECK_NOTHROW(hvp(sum(s.x), {s.x}, {s.x}, zero));
  message_of<GradError>([&] { grad(sum(square(s.x)), {s.x, s.other}); });
  message_of<GradError>([&] { jvp({s.x, sin(s.other)}, {s.x}, {s.x}); });
  // A linear function has no curvature, and the message is about the user's y, not about its gradient.
  const std::string linear = message_of<GradError>([&] {
    hvp(sum(s.x * s.x * s.x) + sum(s.other), {s.x, s.other}, {s.x, s.other});
  });
  CHECK_MESSAGE(contains(linear, fmt::format("[hvp] no gradient of y depends on x = {}: y is linear in it",
                                             describe(s.other))),
                linear);
  CHECK(contains(message_of<GradError>([&] { hvp(sum(s.x), {s.other}, {s.other}); }), "[hvp] y = "));
  const std::string none = message_of<GradError>([&] { vjp({s.x, sin(s.x)}, {s.x, s.x}, {s.other}); });
  CHECK_MESSAGE(contains(none, "none of 2 values, of which y = "), none);
  message_of<GradError>([&] { jvp({s.x}, {}, {}); });  // of no x at all
  CHECK(eval(jvp({s.x}, {}, {}, zero).at(0)).to_vector() == std::vector<double>{0, 0, 0});
}

TEST_CASE("Zeros can be had without an open graph") {
  Graph g;
  const Tensor x = g.input(f64({3})), other = g.input(f64({2}));
  CHECK(grad(sum(x), {other}, {.allow_zero = true})[0].spec() == other.spec());
}

TEST_CASE("Only one floating number has a gradient, values and cotangents must match") {
  Sandbox s;
  CHECK(contains(message_of<GradError>([&] { grad(s.x, {s.x}); }), "sum() it, or use vjp()"));
  message_of<GradError>([&] { grad(sum(cast(s.x, DType::i32)), {s.x}); });
  message_of<GradError>([&] { vjp({s.x}, {s.x, s.x}, {s.x}); });
  const std::string sum_of_x = fmt::format("is {}, its value is {}", describe(sum(s.x)), describe(s.x));
  CHECK(contains(message_of<ShapeError>([&] { vjp({s.x}, {sum(s.x)}, {s.x}); }), "cotangent 0 " + sum_of_x));
  CHECK(contains(message_of<ShapeError>([&] { jvp({s.x}, {s.x}, {sum(s.x)}); }), "tangent 0 " + sum_of_x));
  CHECK(contains(message_of<ShapeError>([&] { hvp(sum(s.x), {s.x}, {sum(s.x)}); }), "vector 0 " + sum_of_x));
}
