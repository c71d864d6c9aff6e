// What grad, vjp, jvp and hvp mean.
#include <array>
#include <cmath>

#include "tests/autograd/deriving.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

constexpr double kTight = 1e-13;

// A smooth vector function of two tensors with broadcasting, products and reductions.
Tensor curved(Tensor a, Tensor b) {  // a [3,2], b [2]
  return softmax(matmul(tanh(a * b), transpose(a)) + exp(sum(a * a, {1}, kKeep)), 1);
}
const std::vector<Spec> kCurved{f64({3, 2}), f64({2})};

}  // namespace

TEST_CASE("Derivatives are total: they count paths through other variables, and variables may be repeated") {
  const Function f = trace(
      [](Tensor x) -> Tensors {
        const Tensor h = square(x), y = h * x;
        return grad(y, {h, x, h, x});
      },
      f64());
  const Arrays out = f(std::vector<Array>{Array::scalar(2)});
  CHECK(out[0].item() == 2);
  CHECK(out[1].item() == 12);
  CHECK(out[2].item() == 2);
  CHECK(out[3].item() == 12);
}

TEST_CASE("A gradient in each step of a long loop costs what its step costs" * doctest::test_suite("slow")) {
  // Quadratic work would take minutes here.
  constexpr int kSteps = 20'000;
  const auto inner = [](Tensor w, Tensor x) { return sum(square(w * x - 1.0)); };
  Graph g;
  const GraphScope scope(g);
  const Tensor x = g.input(f64({3})), start = g.input(f64({3}));
  Tensor w = start;
  std::vector<NodeId> sizes;
  for (int step = 0; step < kSteps; ++step) {
    w = w - 0.01 * grad(inner(w, x), w);
    sizes.push_back(g.size());
  }
  CHECK(sizes[kSteps - 1] - sizes[kSteps - 2] == sizes[100] - sizes[99]);
  // With nothing from outside in the loss, so that all of the value's history lies before its beginning.
  Tensor alone = g.input(f64({3}));
  for (int step = 0; step < kSteps; ++step) alone = alone - 0.01 * grad(sum(square(alone)), alone);
  Plan plan(g.nodes(), {x.id(), start.id()}, {w.id()}, {});
  const Function loop = trace(
      [&](Tensor at, Tensor begin) {
        const StepFn step = [&](const Tensors& c, const Tensors&) {
          return StepOutput{{c[0] - 0.01 * grad(inner(c[0], at), {c[0]})[0]}, {}};
        };
        return scan(step, {begin}, {}, {.steps = kSteps}).carries[0];
      },
      f64({3}), f64({3}));
  const Arrays at{Array::of({0.1, 0.2, 0.3}, {3}), Array::of({1, 2, 3}, {3})};
  CHECK(same_bits(plan.run(at), loop(at)));
}

TEST_CASE("The order in which nodes were made changes no bit of a gradient") {
  // C++ leaves to the compiler which operand of an expression is made first.
  const auto gradient = [](std::array<int, 3> order) {
    const Function f = trace(
        [&](Tensor x) {
          Tensor part[3];
          for (const int i : order) part[i] = i == 0 ? exp(x) : i == 1 ? sin(x) : x * 1.7;
          return grad(sum(part[0] + part[1] + part[2]), x);
        },
        f32({1000}));
    return f(random(f32({1000}), 1));
  };
  const Array expected = gradient({0, 1, 2});
  CHECK(gradient({0, 2, 1}).same_bits(expected));
  CHECK(gradient({1, 2, 0}).same_bits(expected));
  CHECK(gradient({2, 1, 0}).same_bits(expected));
}

TEST_CASE("The derivative of a value with respect to itself is one") {
  const Function f = trace([](Tensor x) { return grad(x, x); }, f64({1}));
  CHECK(f(Array::of({7}, {1})).to_vector() == std::vector<double>{1});
}

TEST_CASE("Gradients of broadcast operands are summed back to their shapes") {
  const Function f = trace(
      [](Tensor a, Tensor b, Tensor c, Tensor d) {
        return grad(sum(a * b * c * d), {a, b, c, d});
      },
      f64({2, 3}), f64({3}), f64({2, 1}), f64());
  const Arrays out = f({Array::full(DType::f64, {2, 3}, 2), Array::of({1, 2, 3}, {3}),
                        Array::of({5, 7}, {2, 1}), Array::scalar(3)});
  CHECK(out[0].to_vector() == std::vector<double>{15, 30, 45, 21, 42, 63});
  CHECK(out[1].to_vector() == std::vector<double>{72, 72, 72});
  CHECK(out[2].to_vector() == std::vector<double>{36, 36});
  CHECK(out[2].shape() == Shape{2, 1});
  CHECK(out[3].item() == 2 * 6 * 12);
  // Leading axes of a matmul broadcast, too.
  const Function g = trace(
      [](Tensor a, Tensor b) {
        return grad(sum(matmul(a, b)), {a, b});
      },
      f64({2, 2}), f64({4, 2, 3}));
  const Arrays ab = random({f64({2, 2}), f64({4, 2, 3})}, 1);
  const Arrays g_out = g(ab);
  CHECK(g_out[0].shape() == Shape{2, 2});
  double expected = 0;
  for (std::int64_t batch = 0; batch < 4; ++batch)
    for (std::int64_t j = 0; j < 3; ++j) expected += ab[1].at(batch * 6 + j);
  CHECK(g_out[0].at(0) == doctest::Approx(expected));
}

TEST_CASE("jvp and vjp are transposes of each other") {
  const Function f = trace(
      [](const Tensors& in) -> Tensors {
        const Tensors x{in[0], in[1]};
        const Tensor y = curved(in[0], in[1]);
        const Tensor forward = sum(jvp({y}, x, {in[2], in[3]})[0] * in[4]);
        const Tensor backward = dot(vjp({y}, {in[4]}, x), {in[2], in[3]});
        return {forward, backward};
      },
      {kCurved[0], kCurved[1], kCurved[0], kCurved[1], f64({3, 3})});
  const Arrays out = f(random({kCurved[0], kCurved[1], kCurved[0], kCurved[1], f64({3, 3})}, 4));
  CHECK(std::abs(out[0].item()) > 1e-3);
  CHECK(relative_error(out[0], out[1], 1) < kTight);
}

TEST_CASE("jvp of several values along several variables is the sum of their parts") {
  const Function f = trace(
      [](Tensor x, Tensor y, Tensor u, Tensor v) -> Tensors {
        return jvp({x * y, sin(x), y}, {x, y}, {u, v});
      },
      f64(), f64(), f64(), f64());
  const double x = .3, y = -1.2, u = .7, v = 2.5;
  const Arrays out = f({Array::scalar(x), Array::scalar(y), Array::scalar(u), Array::scalar(v)});
  CHECK(out[0].item() == doctest::Approx(u * y + x * v).epsilon(1e-14));
  CHECK(out[1].item() == doctest::Approx(std::cos(x) * u).epsilon(1e-14));
  CHECK(out[2].item() == v);
}

TEST_CASE(
    "hvp is the Hessian times a vector: forward over reverse, reverse over reverse, and a symmetric matrix") {
  const std::int64_t n = 4;
  const Function f = trace(
      [&](Tensor x, Tensor v) -> Tensors {
        const Tensor y = sum(exp(x * sin(cumsum(x, 0)))) + square(sum(x));
        Tensors rows;
        for (std::int64_t i = 0; i < n; ++i)
          rows.push_back(reshape(grad(sum(slice(grad(y, x), 0, i, i + 1)), x), {1, n}));
        return {hvp(y, {x}, {v})[0], jvp(grad(y, {x}), {x}, {v})[0], concat(rows, 0)};
      },
      f64({n}), f64({n}));
  const Array v = random(f64({n}), 2);
  const Arrays out = f({random(f64({n}), 1), v});
  const Array& hessian = out[2];
  for (std::int64_t i = 0; i < n; ++i) {
    double row = 0;
    for (std::int64_t j = 0; j < n; ++j) {
      row += hessian.at(i * n + j) * v.at(j);
      CHECK(hessian.at(i * n + j) == doctest::Approx(hessian.at(j * n + i)).epsilon(1e-12));
    }
    CHECK(out[0].at(i) == doctest::Approx(row).epsilon(1e-12));
    CHECK(out[1].at(i) == doctest::Approx(row).epsilon(1e-12));
  }
}

TEST_CASE("A Hessian mixes several variables symmetrically") {
  const std::vector<Spec> specs{kCurved[0], kCurved[1], kCurved[0], kCurved[1], kCurved[0], kCurved[1]};
  const Function f = trace(
      [](const Tensors& in) -> Tensors {
        const Tensors x{in[0], in[1]}, u{in[2], in[3]}, v{in[4], in[5]};
        const Tensor y = sum(square(curved(in[0], in[1])));
        return {dot(hvp(y, x, u), v), dot(hvp(y, x, v), u)};
      },
      specs);
  const Arrays out = f(random(specs, 8));
  CHECK(relative_error(out[0], out[1], 1) < kTight);
}

TEST_CASE("A planned jvp is little more than the program that one would write by hand") {
  const std::vector<Spec> specs{f64({4, 3}), f64({3, 2}), f64({4, 3}), f64({3, 2})};
  const Function derived = trace(
      [](const Tensors& in) -> Tensors {
        return jvp({tanh(matmul(in[0], in[1]))}, {in[0], in[1]}, {in[2], in[3]});
      },
      specs);
  const Function by_hand = trace(
      [](const Tensors& in) -> Tensors {
        const Tensor y = tanh(matmul(in[0], in[1]));
        return {(1.0 - square(y)) * (matmul(in[2], in[1]) + matmul(in[0], in[3]))};
      },
      specs);
  const Arrays at = random(specs, 3);
  CHECK(max_error(derived(at), by_hand(at)) < kTight);
  CHECK(derived.plan().stats().instructions <= by_hand.plan().stats().instructions + 2);
}

TEST_CASE("Levels tell the program (0) from its inner gradient (1) and the gradient of that (2)") {
  Graph g;
  const GraphScope scope(g);
  const Tensor x = g.input(f64({3})), y = sum(tanh(x));
  const NodeId after_forward = g.size();
  const Tensor dx = grad(y, x);
  const NodeId after_first = g.size();
  const Tensor ddx = grad(sum(square(dx)), x);
  const auto level = [&](Tensor t) { return g.node(t.id()).level; };
  CHECK(level(y) == 0);
  CHECK(level(dx) == 1);
  CHECK(level(ddx) == 2);
  for (NodeId id = after_forward; id < after_first; ++id) {
    const GraphNode& n = g.node(id);
    CHECK(n.level <= 1);
    if (n.level == 1) CHECK(g.node(n.vjp_of).level == 0);
  }
  // In a scan as well: inner gradients are level 1 in the body, their derivatives 2 in the reversed one.
  const Function f = derivative([](const Tensors& in) { return learner(in, as_scan); }, learner_specs(), 1);
  const std::string text = f.str();
  CHECK(contains(text, "level 0"));
  CHECK(contains(text, "level 1"));
  CHECK(contains(text, "level 2"));
  CHECK_FALSE(contains(text, "level 3"));
}

TEST_CASE("Derivatives remember the line and the scope of what they differentiate") {
  Graph g;
  const GraphScope open(g);
  const Tensor x = g.input(f64({3}));
  Tensor y;
  {
    const Scope scope("inner loss");
    y = sum(tanh(x));
  }
  const Tensor dx = grad(y, x);
  CHECK(g.node(dx.id()).scope.str() == "inner loss");
  CHECK(g.node(dx.id()).loc.line() == g.node(y.id()).loc.line());
}

TEST_CASE(
    "many slices of one tensor have the gradients of all their elements, and cost what the tensor costs") {
  const Array x = random(f64({12, 5}), 1);
  const auto both = [&](const TraceFn& fn) {
    const Function f = trace(TraceFn([&](const Tensors& in) {
                               Tensor y;
                               for (const Tensor& part : fn(in))
                                 y = y.defined() ? y + sum(sin(part) * part) : sum(sin(part) * part);
                               const Tensor g = grad(y, in[0]);
                               return Tensors{g, grad(sum(square(g)), in[0])};
                             }),
                             {x.spec()});
    return f({x});
  };
  const auto slices = [](const std::vector<std::array<int, 3>>& ranges) {
    return TraceFn([ranges](const Tensors& in) {
      Tensors out;
      for (const auto& [axis, begin, end] : ranges) out.push_back(slice(in[0], axis, begin, end));
      return out;
    });
  };
  // The same elements, chosen by masks.
  const auto masks = [&](const std::vector<std::array<int, 3>>& ranges) {
    return TraceFn([ranges](const Tensors& in) {
      Tensors out;
      for (const auto& [axis, begin, end] : ranges) {
        const Tensor place = iota(DType::f64, in[0].shape(), axis);
        out.push_back(in[0] * (place >= static_cast<double>(begin)) * (place < static_cast<double>(end)));
      }
      return out;
    });
  };
  for (const std::vector<std::array<int, 3>>& ranges : std::vector<std::vector<std::array<int, 3>>>{
           {{0, 0, 3}, {0, 3, 7}, {0, 7, 12}},                        // all of it
           {{0, 8, 10}, {0, 1, 2}, {0, 4, 4}, {0, 5, 6}},             // gaps, nothing, any order
           {{0, 0, 6}, {0, 4, 9}, {0, 8, 12}, {0, 0, 1}},             // some meet
           {{0, 0, 6}, {1, 0, 2}, {1, 3, 5}, {0, 6, 12}, {0, 2, 3}},  // of both axes
           {{1, 2, 3}},
           {{0, 0, 4}, {0, 0, 12}, {0, 4, 12}}}) {
    CHECK(max_error(both(slices(ranges)), both(masks(ranges))) < 1e-12);
  }
  // Twice as many slices of as many elements: no more memory.
  const auto arena = [](std::int64_t n) {
    const Function f = trace(
        [&](Tensor whole) {
          Tensor h = zeros(DType::f64, {1, 40});
          for (std::int64_t t = 0; t < n; ++t) h = tanh(h + slice(whole, 0, t, t + 1));
          return grad(sum(h), whole);
        },
        f64({n, 40}));
    return f.plan().stats().arena_bytes;
  };
  CHECK(arena(200) < 3 * arena(100));
}
