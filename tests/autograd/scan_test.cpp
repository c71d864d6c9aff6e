// scan = the loop that it stands for: values and derivatives of orders 1 to 3.
#include <cmath>

#include "tests/autograd/deriving.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

constexpr double kTight = 1e-13;

using LoopScalar = std::function<Tensor(const Tensors& inputs, const Loop& loop)>;

Scalar with(const LoopScalar& fn, const Loop& loop) {
  return [=](const Tensors& in) { return fn(in, loop); };
}

// The scan and the unrolled loop agree at orders 0 to 3.
void check_scan_is_loop(const std::vector<Spec>& specs, const LoopScalar& fn, int orders = 3) {
  const Arrays at = random(specs, 77);
  for (int order = 0; order <= orders; ++order) {
    CAPTURE(order);
    CHECK(max_error(derivative(with(fn, as_scan), specs, order)(at),
                    derivative(with(fn, unrolled), specs, order)(at)) < kTight);
  }
}

// L_order at x = dL_(order-1)/dh at x + h r, by a central difference of fourth order.
void check_central_differences(const std::vector<Spec>& specs, const Scalar& fn, int order) {
  const double h = 2e-4;
  const auto level = [&](int k) {
    return trace([&](const Tensors& x) { return Tensors{directional(fn(x), x, k)}; }, specs);
  };
  const Function lower = level(order - 1), upper = level(order);
  const Arrays at = random(specs, 77), r = directions(specs, order);
  const auto moved = [&](double by) {
    Arrays out;
    for (std::size_t i = 0; i < at.size(); ++i) {
      out.push_back(at[i].clone());
      for (std::size_t k = 0; k < static_cast<std::size_t>(at[i].size()); ++k)
        out[i].as<double>()[k] += by * r[i].as<double>()[k];
    }
    return lower(out)[0].item();
  };
  const double numeric = (8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h),
               exact = upper(at)[0].item();
  CHECK(std::abs(numeric - exact) < 1e-7 * std::max(1.0, std::abs(exact)));
}

}  // namespace

TEST_CASE("A learner in a scan has the derivatives of the unrolled loop") {
  check_scan_is_loop(learner_specs(), [](const Tensors& in, const Loop& loop) { return learner(in, loop); });
}

TEST_CASE("A reversed scan runs from the last time to the first, indexed by time") {
  check_scan_is_loop(learner_specs(), [](const Tensors& in, const Loop& loop) {
    return learner(in, loop, {.reverse = true});
  });
  const Function f = trace(
      [](Tensor x) {
        return scan(
                   [](const Tensors& c, const Tensors& now) -> StepOutput {
                     const Tensor s = c[0] + now[0];
                     return {{s}, {s}};
                   },
                   {zeros(DType::f64, {})}, {x}, {.reverse = true})
            .ys[0];
      },
      f64({3}));
  CHECK(f(Array::of({1, 10, 100}, {3})).to_vector() == std::vector<double>{111, 110, 100});
}

// In each step the gradient of a loss by w from outside, which also comes in as what ops outside make of it: `h`, made before the
// loop, what is moved out of the body, and a loop outside. No carry is made of w.
TEST_CASE("An inner gradient by a tensor from outside goes on through what was made of it there") {
  const std::vector<Spec> specs{f64({3}), f64({4, 3}), f64({2, 3})};
  using Loss = std::function<Tensor(Tensor w, Tensor h, Tensor c)>;
  const std::vector<Loss> losses{[](Tensor w, Tensor, Tensor c) {
                                   return sum(c * w) + 0.5 * sum(square(w));
                                 },  // the second term is moved out
                                 [](Tensor w, Tensor h, Tensor c) { return sum(square(c * h) * w); },
                                 [](Tensor w, Tensor h, Tensor c) { return sum(sin(h * w) * exp(c * h)); },
                                 [](Tensor, Tensor h, Tensor c) { return sum(h * h * c); }};
  for (const bool by_loop : {false, true})
    for (std::size_t which = 0; which < losses.size(); ++which) {
      CAPTURE(by_loop);
      CAPTURE(which);
      const auto fn = [&](const Tensors& in, const Loop& loop) {
        const Tensor w = in[0];
        const auto grow = [&](const Tensors& c, const Tensors& x) -> StepOutput {
          return {{sin(c[0]) * x[0] + w}, {}};
        };
        const Tensor h = by_loop ? loop(grow, {w}, {in[2]}, {}).carries[0] : sin(w);
        const auto inner = [&](const Tensors& c, const Tensors& x) -> StepOutput {
          return {{tanh(c[0] + x[0])}, {grad(losses[which](w, h, c[0]), {w})[0]}};
        };
        const auto outer = [&](const Tensors& c, const Tensors& x) -> StepOutput {
          const ScanResult r = loop(inner, {c[0]}, {in[1] * x[0]}, {});
          return {{r.carries[0]}, {r.ys[0], grad(losses[which](w, h * x[0], c[0]), {w})[0]}};
        };
        const ScanResult r = loop(outer, {zeros(DType::f64, {3})}, {in[2]}, {});
        return sum(sin(r.ys[0])) + sum(square(r.ys[1]));
      };
      check_scan_is_loop(specs, fn, 2);
    }
}

TEST_CASE("Scans inside scans have the derivatives of the unrolled loops") {
  check_scan_is_loop(
      learner_specs(3), [](const Tensors& in, const Loop& loop) { return nested_learner(in, loop); }, 2);
}

TEST_SUITE("slow") {
  TEST_CASE("Scans inside scans have the third derivatives of the unrolled loops") {
    check_scan_is_loop(learner_specs(3),
                       [](const Tensors& in, const Loop& loop) { return nested_learner(in, loop); });
  }
}

TEST_CASE("Derivatives of a scan are those of central differences, orders 1 to 3") {
  for (int order = 1; order <= 3; ++order) {
    CAPTURE(order);
    check_central_differences(
        learner_specs(), [](const Tensors& in) { return learner(in, as_scan); }, order);
    if (order < 3)
      check_central_differences(
          learner_specs(3), [](const Tensors& in) { return nested_learner(in, as_scan); }, order);
  }
}

TEST_CASE("jvp through a scan is the gradient along the tangent") {
  for (const bool nested : {false, true}) {
    const auto specs = learner_specs(4);
    const Function f = trace(
        [&](const Tensors& in) -> Tensors {
          const Tensor y = nested ? nested_learner(in, as_scan) : learner(in, as_scan);
          Tensors r;
          for (const Array& a : directions(specs, 1)) r.push_back(constant(a));
          return {jvp({y}, in, r)[0], dot(grad(y, in), r)};
        },
        specs);
    const Arrays out = f(random(specs, 3));
    CHECK(relative_error(out[0], out[1], 1) < kTight);
  }
}

TEST_CASE("Several carries: one that becomes active through another, dead ones, integers") {
  // b starts from nothing that is differentiated and is reached through a; c feeds nothing; n counts.
  check_scan_is_loop({f64({2}), f64({2}), f64({5, 2})}, [](const Tensors& in, const Loop& loop) {
    const ScanResult r = loop(
        [&](const Tensors& s, const Tensors& x) -> StepOutput {
          const Tensor a = s[0], b = s[1], c = s[2], n = s[3];
          const Tensor rate = 1.0 / (1.0 + cast(n, DType::f64));
          return {{tanh(a + x[0] * in[1]) * rate, b * b + sin(a) * x[0], c * 2.0 + a, n + 1}, {b * in[1], c}};
        },
        {in[0], full(DType::f64, {2}, 0.1), zeros(DType::f64, {2}), zeros(DType::i32, {})}, {in[2]}, {});
    return sum(r.carries[1]) + sum(square(r.ys[0]));
  });
}

TEST_CASE("Tensors that enter a scan in several roles collect every derivative") {
  // w is a start and a constant; m is stepped through, and a constant as a whole.
  check_scan_is_loop({f64({3, 3}), f64({3, 3})}, [](const Tensors& in, const Loop& loop) {
    const Tensor w = in[0], m = in[1];
    const ScanResult r = loop(
        [&](const Tensors& s, const Tensors& x) -> StepOutput {
          const Tensor mixed = tanh(matmul(s[0], w) + x[0]), whole = matmul(m, mixed);
          return {{mixed, s[1] + x[1]}, {whole, s[0], x[0]}};
        },
        {w, zeros(DType::f64, {3})}, {m, matmul(m, w)}, {});
    return sum(square(r.ys[0]) * r.ys[1]) + sum(r.ys[2] * r.ys[2]) + sum(sin(r.carries[1])) +
           sum(r.carries[0]);
  });
}

TEST_CASE("A step may return a carry unchanged, an outer tensor, or a number") {
  check_scan_is_loop({f64({2}), f64({2}), f64({4, 2})}, [](const Tensors& in, const Loop& loop) {
    const ScanResult r = loop(
        [&](const Tensors& s, const Tensors& x) -> StepOutput {
          const Tensor mixed = tanh(s[0] * s[1] + s[2] * x[0]);
          return {{s[0], in[1], x[0], s[1] + s[3], constant(Array::full(DType::f64, {2}, 2.0))},
                  {mixed, in[1], s[4] * x[0]}};
        },
        {in[0], sin(in[0]), in[1], in[0], in[1]}, {in[2]}, {});
    Tensor y = sum(r.carries[0] * r.carries[1] * r.carries[2]) + sum(square(r.carries[3]));
    for (const Tensor& t : r.ys) y = y + sum(square(t));
    return y;
  });
}

TEST_CASE("A scan of one step, and one without per-step inputs, are the loops that they stand for") {
  check_scan_is_loop(learner_specs(1), [](const Tensors& in, const Loop& loop) { return learner(in, loop); });
  check_scan_is_loop({f64({3})}, [](const Tensors& in, const Loop& loop) {
    const ScanResult r = loop(
        [&](const Tensors& s, const Tensors&) -> StepOutput {
          return {{sin(s[0]) * in[0]}, {s[0]}};
        },
        in, {}, {.steps = 4});
    return sum(square(r.carries[0])) + sum(r.ys[0]);
  });
}

TEST_CASE("Derivatives with respect to a value that a scan returned stop there") {
  const Function f = trace(
      [](Tensor w, Tensor x) -> Tensors {
        const ScanResult r = scan(
            [](const Tensors& s, const Tensors& now) -> StepOutput {
              const Tensor next = s[0] * now[0];
              return {{next}, {next}};
            },
            {w}, {x});
        const Tensor y = sum(square(r.ys[0])) * r.carries[0];
        return grad(y, {r.carries[0], r.ys[0]});
      },
      f64(), f64({3}));
  const Arrays out = f({Array::scalar(2), Array::of({1, 3, 2}, {3})});  // carry 12, ys 2, 6, 12
  CHECK(out[0].item() == 4 + 36 + 144);
  CHECK(out[1].to_vector() == std::vector<double>{48, 144, 288});
}

TEST_CASE("The graph of a scan and of its derivatives does not grow with time") {
  for (int order = 0; order <= 3; ++order) {
    const auto nodes = [&](std::int64_t steps) {
      return derivative([](const Tensors& in) { return learner(in, as_scan); }, learner_specs(steps), order)
          .live_nodes();
    };
    CHECK(nodes(4) == nodes(400));
    if (order == 3) CHECK(nodes(4) < 1200);
  }
}

TEST_CASE("Equal scans are one node") {
  Graph g;
  const GraphScope scope(g);
  const Tensor w = g.input(f64({2})), x = g.input(f64({3, 2}));
  const auto loop = [&](double rate) {
    return scan(
               [&](const Tensors& s, const Tensors& now) -> StepOutput {
                 return {{s[0] + rate * now[0] * w}, {}};
               },
               {w}, {x})
        .carries[0];
  };
  CHECK(loop(0.5) == loop(0.5));
  CHECK_FALSE(loop(0.5) == loop(0.25));
}

TEST_CASE("Work that does not change over time is done once, outside the loop") {
  const auto exps_outside = [](const Loop& loop) {
    const Function f = trace(
        [&](Tensor w, Tensor x) {
          return loop(
                     [&](const Tensors& s, const Tensors& now) -> StepOutput {
                       const ScanResult inner = loop(
                           [&](const Tensors& c, const Tensors&) -> StepOutput {
                             return {{c[0] * exp(w) + sin(w)}, {}};
                           },
                           {w}, {}, {.steps = 2});  // invariant as a whole
                       return {{s[0] + now[0] * exp(w) * inner.carries[0]}, {}};
                     },
                     {w}, {x}, {})
              .carries[0];
        },
        f64(), f64({3}));
    CHECK(count_op(f, "exp") == 1);
    CHECK(count_op(f, "sin") == 1);
    return contains(f.str(), "\n    %") && contains(f.str(), "\n        %");  // nested bodies
  };
  CHECK(exps_outside(as_scan) == false);  // two scans side by side, none inside the other
  CHECK(exps_outside(unrolled) == false);
}

TEST_CASE("What is read of a scan twice has the cotangents of both, in a graph that shares nothing too") {
  const Array start = random(f64({3, 2}), 5);
  const auto slope = [&](bool share) {
    Graph g(GraphOptions{.share = share});
    const GraphScope scope(g);
    const Tensor x = probe(constant(start));
    const ScanResult r = scan(
        [](const Tensors& c, const Tensors& in) -> StepOutput {
          const Tensor next = tanh(c[0] + in[0]);
          return {{next}, {next, next}};
        },
        {zeros(DType::f64, {2})}, {x});
    const Tensor again = scan_final(g.tensor(g.node(r.carries[0].id()).inputs[0]), 0);
    CHECK((again == r.carries[0]) == share);
    return eval(grad(sum(r.ys[0] * sin(r.ys[1])) + sum(r.carries[0] * sin(again)), x));
  };
  CHECK(max_error({slope(false)}, {slope(true)}) < kTight);
}

TEST_CASE("a carry that nothing reads has no cotangent, not one of zeros: its infinite slope does no harm") {
  // The second carry is a root at 0, whose slope is infinite.
  const Function f = trace(
      [](Tensor w) {
        const ScanResult r = scan(
            [&](const Tensors& c, const Tensors&) -> StepOutput {
              return {{c[0] + w, sqrt(c[1] * w)}, {c[0] * w}};
            },
            {zeros(DType::f64, {}), zeros(DType::f64, {})}, {}, {.steps = 3});
        return Tensors{grad(r.carries[0], w), grad(sum(r.ys[0]), w), grad(r.carries[0] + r.carries[1], w)};
      },
      f64({}));
  const Arrays g = f(Arrays{Array::scalar(2)});
  CHECK(g[0].item() == 3);
  CHECK(g[1].item() == 12);        // 0 + w^2 + 2 w^2
  CHECK(std::isnan(g[2].item()));  // where it is read
}

TEST_CASE(
    "A loop is shown with its own lines and scopes, whatever equal loop is alive; equal loops are one") {
  const auto looped = [](const Tensors& in, const std::string& name) {
    return scan(
               [&](const Tensors& c, const Tensors& x) -> StepOutput {
                 const Scope scope(name);
                 return {{tanh(c[0] + x[0])}, {}};
               },
               {in[0]}, {in[1]})
        .carries[0];
  };
  const std::vector<Spec> specs{f64({2}), f64({3, 2})};
  const Function first = trace([&](const Tensors&in) { return Tensors{looped(in, "first")}; }, specs),
                 second = trace([&](const Tensors&in) { return Tensors{looped(in, "second")}; }, specs);
  CHECK(contains(first.str(), "in first"));
  CHECK(contains(second.str(), "in second"));
  const Function both =
      trace([&](const Tensors& in) { return Tensors{looped(in, "first") + looped(in, "second")}; }, specs);
  CHECK(count_op(both, "scan") == 1);
}

TEST_CASE(
    "A carry that each step hands on as it is is read where it lies, and so is its last value: smaller arena") {
  constexpr std::int64_t kSize = 16'000, kSteps = 50;
  const auto looped = [](const Tensors& in) {
    const StepFn step = [](const Tensors& c, const Tensors& x) {
      return StepOutput{{stop_gradient(c[0]), c[1] + gather(c[0], x[0])}, {}};
    };
    const ScanResult r = scan(step, {in[0], zeros(DType::f64, {})}, {in[1]});
    return Tensors{r.carries[1], sum(r.carries[0]) * 3.0};
  };
  const auto plain = [](const Tensors& in) { return Tensors{sum(gather(in[0], in[1])), sum(in[0]) * 3.0}; };
  const std::vector<Spec> specs{f64({kSize}), {DType::i32, {kSteps}}};
  Array at(specs[1]);
  for (std::int64_t i = 0; i < kSteps; ++i)
    at.as<std::int32_t>()[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * 311);
  const Arrays args{random(specs[0], 4), at};
  const Function f = trace(looped, specs), expected = trace(plain, specs);
  CHECK(max_error(f(args), expected(args)) < 1e-10);
  CHECK(f.plan().stats().arena_bytes < specs[0].bytes());
  const auto gradients = [](const auto& fn) {
    return [fn](const Tensors& in) {
      const Tensors out = fn(in);
      return Tensors{grad(out[0] * 2.0 + out[1], in[0])};
    };
  };
  // What stop_gradient hides from later steps is a path that the gradient lacks: the first step alone reads x.
  Array first = Array::zeros(DType::f64, {kSize});
  first.as<double>()[0] = 2;
  CHECK(same_bits(trace(gradients(looped), specs)(args), {first}));
}

TEST_CASE("Loops may be nested deep, and no deeper than plans can be made of them") {
  const auto nested = [](int depth) {
    return trace(
        [depth](Tensor x) {
          const std::function<Tensor(Tensor, int)> inside = [&](Tensor c, int left) {
            if (left == 0) return sin(c);
            return scan(
                       [&](const Tensors& in, const Tensors&) {
                         return StepOutput{{inside(in[0], left - 1)}, {}};
                       },
                       {c}, {}, {.steps = 1})
                .carries[0];
          };
          return inside(x, depth);
        },
        f64({2}));
  };
  const Array x = Array::of({0.5, -2}, {2});
  CHECK(max_error({nested(500)(x)}, {Array::of({std::sin(0.5), std::sin(-2.0)}, {2})}) < 1e-15);
  const std::string message = message_of<GraphError>([&] { nested(501); });
  CHECK(contains(message, "[scan] loops and functions are nested more than 500 deep"));
  CHECK(contains(message, "scan_test.cpp:"));
}
