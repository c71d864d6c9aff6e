// Where the paths of derivatives are cut, and what is said about it.
#include "autograd/why.h"

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

std::vector<std::string> cut_ops(const Disconnection& d) {
  std::vector<std::string> out;
  for (const Disconnection::Cut& cut : d.cuts) out.push_back(cut.op);
  return out;
}

using Ops = std::vector<std::string>;

// What is said must agree with what grad does.
Disconnection ask(Tensor y, Tensor x) {
  const Disconnection d = why_disconnected(y, x);
  CHECK((d.meets || !d.connected));
  if (!d.meets) CHECK(d.cuts.empty());
  if (!is_float(y.dtype()) || !is_float(x.dtype())) {
    CHECK_FALSE(d.connected);
  } else if (d.connected) {
    CHECK_NOTHROW(grad(sum(y), {x}));
  } else {
    const std::string refusal = message_of<GradError>([&] { grad(sum(y), {x}); });
    for (const Disconnection::Cut& cut : d.cuts)
      CHECK_MESSAGE(contains(refusal, fmt::format("= {} {}", cut.op, to_string(cut.spec))), refusal);
    if (!d.meets) CHECK(contains(refusal, "x never meets y"));
  }
  return d;
}

}  // namespace

TEST_CASE("A derivative that passes is connected, and nothing is cut") {
  Sandbox s;
  const Disconnection d = ask(sum(tanh(s.x) * s.other), s.x);
  CHECK(d.connected);
  CHECK(d.meets);
  CHECK(d.cuts.empty());
  CHECK(contains(d.str(), "depends on"));
  CHECK(contains(d.str(), "no path is cut"));
  CHECK(ask(s.x, s.x).connected);
}

TEST_CASE("A stop_gradient is named with its line, and that it may go or be a held weight") {
  Sandbox s;
  const Tensor stopped = stop_gradient(square(s.x));
  const int line = __LINE__ - 1;
  const Disconnection d = ask(tanh(stopped * s.other), s.x);
  CHECK_FALSE(d.connected);
  CHECK(d.meets);
  REQUIRE(d.cuts.size() == 1);
  CHECK(d.cuts[0].op == "stop_gradient");
  CHECK(d.cuts[0].node == stopped.id());
  CHECK(d.cuts[0].level == 0);
  CHECK(d.cuts[0].loc.line() == static_cast<unsigned>(line));
  CHECK_FALSE(d.cuts[0].in_scan);
  for (const std::string& part : {std::string("does not depend on"), std::string("every path is cut"),
                                  fmt::format("why_test.cpp:{}", line), std::string("Remove it"),
                                  std::string("Weights::held"), std::string("stops gradients")})
    CHECK_MESSAGE(contains(d.str(), part), d.str(), " lacks ", part);
}

TEST_CASE("Integers, steps and masks are told apart, each with what to do") {
  Sandbox s;
  const auto said = [&](Tensor y, Tensor x, const std::string& op, const std::string& advice) {
    const Disconnection d = ask(y, x);
    CHECK(cut_ops(d) == Ops{op});
    CHECK_MESSAGE(contains(d.str(), advice), d.str(), " lacks ", advice);
  };
  said(cast(cast(s.x, DType::i32), DType::f64), s.x, "cast", "softmax for a largest element");
  said(greater(s.x, 0.5) * s.other, s.x, "greater", "sigmoid");
  said(sign(s.x), s.x, "sign", "custom_vjp");
  said(select(s.x, s.other, 2.0 * s.other), s.x, "select", "operand that has a derivative");
  said(gather(s.other, s.indices), s.indices, "gather", "An integer chooses");
  said(gather(s.other, cast(s.x, DType::i32)), s.x, "cast", "Stay in a floating type");
}

TEST_CASE("What is behind a cut is not listed, what is beside it is") {
  Sandbox s;
  CHECK(cut_ops(ask(sign(stop_gradient(s.x)), s.x)) == Ops{"stop_gradient"});
  const Tensor stopped = stop_gradient(s.x), step = sign(s.x);
  CHECK(cut_ops(ask(step + stopped, s.x)) == Ops{"stop_gradient", "sign"});
}

TEST_CASE("A cut that y has nothing to do with is not listed") {
  Sandbox s;
  (void)sign(s.x);
  const ScanResult r = scan(
      [&](const Tensors& c, const Tensors& x) -> StepOutput {
        return {{c[0] + stop_gradient(x[0])}, {sign(x[0]), 2.0 * x[0]}};
      },
      {s.other}, {reshape(s.x, {3, 1})});
  CHECK(ask(r.ys[1], s.x).connected);
  CHECK(ask(r.ys[1], s.x).cuts.empty());
  CHECK(cut_ops(ask(r.ys[0], s.x)) == Ops{"sign"});
  CHECK(cut_ops(ask(r.carries[0], s.x)) == Ops{"stop_gradient"});
}

TEST_CASE("A y that is not made of x never meets it") {
  Sandbox s;
  const Disconnection d = ask(sum(s.other), s.x);
  CHECK_FALSE(d.meets);
  CHECK_FALSE(d.connected);
  CHECK(contains(d.str(), "is not made of x"));
  CHECK_FALSE(ask(s.x, tanh(s.x)).meets);  // not the other way
  // A carry's start that the step forgets.
  const ScanResult forgets = scan(
      [&](const Tensors&, const Tensors&) -> StepOutput {
        return {{s.other}, {}};
      },
      {s.x}, {}, {.steps = 2});
  CHECK_FALSE(ask(forgets.carries[0], s.x).meets);
}

TEST_CASE("One path cut and another open: connected, and the cut path is listed") {
  Sandbox s;
  const Disconnection d = ask(stop_gradient(s.x) * s.x, s.x);
  CHECK(d.connected);
  CHECK(cut_ops(d) == Ops{"stop_gradient"});
  CHECK(contains(d.str(), "Some paths are cut all the same"));
}

TEST_CASE("A cut inside of a scan's body is found, through carries, at any depth, and at its level") {
  Sandbox s;
  const Tensor rows = reshape(s.x, {3, 1});
  const ScanResult r = scan(
      [&](const Tensors& c, const Tensors& x) -> StepOutput {
        // x reaches the second carry one step after the first, and y only through the second
        return {{x[0] * s.other, c[1] + stop_gradient(c[0])}, {}};
      },
      {s.other, s.other}, {rows});
  const Disconnection d = ask(r.carries[1], s.x);
  CHECK_FALSE(d.connected);
  REQUIRE(cut_ops(d) == Ops{"stop_gradient"});
  CHECK(d.cuts[0].in_scan);
  CHECK(contains(d.str(), "(in a scan)"));
  CHECK(ask(r.carries[0], s.x).connected);

  const ScanResult nested = scan(
      [&](const Tensors& c, const Tensors& x) -> StepOutput {
        const ScanResult inner = scan(
            [&](const Tensors& w, const Tensors&) -> StepOutput {
              const Tensor loss = sum(square(w[0] - stop_gradient(x[0])));
              return {{w[0] - 0.1 * grad(loss, {w[0]})[0]}, {}};
            },
            {c[0]}, {}, {.steps = 2});
        return {{inner.carries[0]}, {}};
      },
      {s.other}, {rows});
  const Disconnection deep = ask(nested.carries[0], s.x);
  CHECK_FALSE(deep.connected);
  CHECK(cut_ops(deep) == Ops{"stop_gradient"});
  CHECK(ask(nested.carries[0], s.other).connected);
}

TEST_CASE("A cut by a gradient's own ops has the gradient's level") {
  Sandbox s;
  const Tensor slope = grad(sum(relu(s.x)), {s.x})[0];  // a step function of x
  const Disconnection d = ask(slope, s.x);
  CHECK_FALSE(d.connected);
  CHECK(cut_ops(d) == Ops{"less_equal"});
  CHECK(d.cuts[0].level == 1);
}

TEST_CASE("Tensors of different graphs are refused, a body's own are not") {
  Sandbox s;
  Graph foreign;
  const Tensor elsewhere = foreign.input(f64({3}), "elsewhere");
  CHECK(contains(message_of<GraphError>([&] { why_disconnected(s.x, elsewhere); }), "different graphs"));
  CHECK(contains(message_of<GraphError>([&] { why_disconnected(s.x, Tensor()); }), "names nothing"));
  scan(
      [&](const Tensors& c, const Tensors&) -> StepOutput {
        CHECK(ask(stop_gradient(c[0]) + s.other, c[0]).cuts.size() == 1);
        return {{c[0]}, {}};
      },
      {s.x}, {}, {.steps = 2});
}
