// What a scan refuses, and how it says so.
#include "tests/autograd/deriving.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

struct Sandbox {
  Graph graph;
  GraphScope scope{graph};
  Tensor w = graph.input(f64({2}), "w"), x = graph.input(f64({4, 2}), "x");
};

}  // namespace

TEST_CASE(
    "An inner gradient with respect to what a carry or x starts from is refused, not silently partial") {
  Sandbox s;
  const auto body = [&](const Tensors& c, const Tensors& now) -> StepOutput {
    return {{c[0] - grad(sum(s.w * c[0] * now[0]), {s.w})[0]}, {}};
  };
  const Tensor zero = zeros(DType::f64, {2});
  CHECK_NOTHROW(scan(body, {zero}, {s.x}));
  CHECK(contains(message_of<GradError>([&] { scan(body, {s.w}, {s.x}); }), "miss"));
  CHECK(contains(message_of<GradError>([&] { scan(body, {exp(s.w)}, {s.x}); }), "= exp "));
  CHECK(contains(message_of<GradError>([&] { scan(body, {zero}, {s.x * s.w}); }), "= mul "));
}

TEST_CASE(
    "an inner gradient that would miss its path through the steps before is refused, in loops of loops too") {
  Sandbox s;
  const auto slope = [&](Tensor c, Tensor w) { return grad(sum(square(c * w)), {w})[0]; };
  const auto loop = [&](const StepFn& step) { return scan(step, {zeros(DType::f64, {2})}, {s.x}); };
  const auto missed = [](const std::function<void()>& fn) {
    return contains(message_of<GradError>(fn),
                    "would miss its path through the steps before: carry 0 is made of it");
  };
  // The carry is made of w by its gradient, or by a value of w.
  CHECK(missed([&] {
    loop([&](const Tensors& c, const Tensors& x) -> StepOutput {
      return {{c[0] + x[0] - slope(c[0], s.w)}, {}};
    });
  }));
  CHECK(missed([&] {
    loop([&](const Tensors& c, const Tensors&) -> StepOutput { return {{c[0] + s.w}, {slope(c[0], s.w)}}; });
  }));
  // Of the step alone, asked for as that; and where no carry is made of w, or the loss reads none that is.
  const auto fine = [&](const StepFn& step) { CHECK_NOTHROW(loop(step)); };
  fine([&](const Tensors& c, const Tensors& x) -> StepOutput {
    return {{c[0] + x[0] - slope(stop_gradient(c[0]), s.w)}, {}};
  });
  fine([&](const Tensors& c, const Tensors& x) -> StepOutput { return {{c[0] + x[0]}, {slope(c[0], s.w)}}; });
  fine([&](const Tensors& c, const Tensors& x) -> StepOutput { return {{c[0] + slope(x[0], s.w)}, {}}; });
  // In a loop inside, by what the loop around it carries.
  const auto nested = [&](bool carried) {
    loop([&](const Tensors& outer, const Tensors& x) -> StepOutput {
      const ScanResult inner = scan(
          [&](const Tensors& c, const Tensors&) -> StepOutput {
            return {{c[0]}, {slope(c[0] + outer[0], s.w)}};
          },
          {x[0]}, {}, {.steps = 2});
      return {{carried ? outer[0] + s.w : outer[0] + x[0]}, {inner.ys[0]}};
    });
  };
  CHECK(missed([&] { nested(true); }));
  // Of a carry that starts from it, it is not named twice.
  CHECK(contains(
      message_of<GradError>([&] {
        scan(
            [&](const Tensors& c, const Tensors&) -> StepOutput {
              return {{c[0]}, {slope(c[0], s.w)}};
            },
            {s.w}, {s.x});
      }),
      "would miss its path through the carry that starts from it, or the sequence that it is. A body's"));
  CHECK_NOTHROW(nested(false));
}

TEST_CASE("A way through the steps before is missed by whatever ops outside make of x, too") {
  Sandbox s;
  const Tensor zero = zeros(DType::f64, {2});
  const auto slope = [&](Tensor c) { return grad(sum(square(c * s.w)), {s.w})[0]; };
  // What the carry is made of: captures, sequences and starts that are made of w.
  const auto missed = [&](const std::function<Tensor(Tensor c, Tensor x)>& next, const Tensors& init,
                          const Tensors& xs) {
    return contains(message_of<GradError>([&] {
                      scan(
                          [&](const Tensors& c, const Tensors& x) -> StepOutput {
                            Tensors carries{next(c[0], x[0])};
                            // A second carry takes what the first one held, so the first step alone reads none of it.
                            carries.push_back(c[0]);
                            return {carries, {slope(c[1])}};
                          },
                          init, xs);
                    }),
                    "would miss its path through the steps before: carry 1 is made of it");
  };
  const Tensor h = square(s.w);
  CHECK(missed([&](Tensor c, Tensor) { return c + h; }, {zero, zero}, {s.x}));
  CHECK(missed([&](Tensor c, Tensor) { return c + square(s.w); }, {zero, zero},
               {s.x}));  // moved out of the body
  CHECK(missed([&](Tensor c, Tensor x) { return c + x; }, {zero, zero}, {s.x * s.w}));
  CHECK(missed([&](Tensor c, Tensor) { return c; }, {h, zero}, {s.x}));
  CHECK_NOTHROW(scan(
      [&](const Tensors& c, const Tensors& x) -> StepOutput {
        return {{c[0] + x[0], c[0]}, {slope(c[1])}};
      },
      {zero, zero}, {s.x}));
}

TEST_CASE("A tensor that escaped from a scan body is an error, not undefined behaviour") {
  Sandbox s;
  Tensor escaped;
  scan(
      [&](const Tensors& c, const Tensors& now) -> StepOutput {
        escaped = c[0] * now[0];
        return {{escaped}, {}};
      },
      {s.w}, {s.x});
  CHECK(contains(message_of<GraphError>([&] { sin(escaped); }), "escaped"));
  CHECK(contains(message_of<GraphError>([&] { s.w + escaped; }), "escaped"));
  CHECK(contains(message_of<GraphError>([&] { (void)escaped.shape(); }), "escaped"));
  CHECK_FALSE(escaped.alive());
  // Nor may it come back in another body, even one at the same address.
  message_of<GraphError>([&] {
    scan(
        [&](const Tensors& c, const Tensors&) -> StepOutput {
          return {{c[0] + escaped}, {}};
        },
        {s.w}, {s.x});
  });
}

TEST_CASE("A scan whose carries do not keep their shape, type or number is refused") {
  Sandbox s;
  const auto refuse = [&](const StepFn& step) {
    return message_of<ShapeError>([&] { scan(step, {s.w}, {s.x}); });
  };
  CHECK(contains(refuse([](const Tensors& c, const Tensors&) -> StepOutput {
                   return {{sum(c[0])}, {}};
                 }),
                 "f64[] (scan_error_test.cpp:"));
  CHECK(contains(refuse([](const Tensors& c, const Tensors&) -> StepOutput {
                   return {{cast(c[0], DType::f32)}, {}};
                 }),
                 "cast f32[2] (scan_error_test.cpp:"));
  CHECK(contains(refuse([](const Tensors&, const Tensors&) -> StepOutput {
                   return {{}, {}};
                 }),
                 "returned 0 carries, it was given 1"));
}

TEST_CASE("A scan needs a number of steps, the same for all inputs") {
  Sandbox s;
  const StepFn keep = [](const Tensors& c, const Tensors&) -> StepOutput { return {c, {}}; };
  CHECK(
      contains(message_of<ShapeError>([&] { scan(keep, {s.w}, {}); }), "at least one step, got -1; give xs"));
  const std::string empty = message_of<ShapeError>([&] { scan(keep, {s.w}, {slice(s.x, 0, 0, 0)}); });
  CHECK_MESSAGE(contains(empty, "at least one step; the first axis of xs, its steps, is 0"), empty);
  CHECK(contains(message_of<ShapeError>([&] { scan(keep, {s.w}, {s.x, s.w}); }), "others 4"));
  CHECK(contains(message_of<ShapeError>([&] { scan(keep, {s.w}, {sum(s.x)}); }), "no time axis"));
  message_of<ConfigError>([&] { scan(keep, {s.w}, {s.x}, {.checkpoint_every = -1}); });
}

TEST_CASE("A tensor of an unrelated graph cannot enter a scan") {
  Sandbox s;
  Graph other;
  const Tensor stranger = other.input(f64({2}), "stranger");
  CHECK(contains(message_of<GraphError>([&] {
                   scan(
                       [&](const Tensors& c, const Tensors&) -> StepOutput {
                         return {{c[0] + stranger}, {}};
                       },
                       {s.w}, {s.x});
                 }),
                 "another graph"));
}

TEST_CASE("An error inside a body leaves the outer graph usable") {
  Sandbox s;
  message_of<ShapeError>([&] {
    scan(
        [&](const Tensors& c, const Tensors&) -> StepOutput {
          return {{matmul(c[0], c[0])}, {}};
        },
        {s.w}, {s.x});
  });
  CHECK((s.w + 1.0).graph().parent() == nullptr);
  CHECK_NOTHROW(grad(sum(square(s.w)), {s.w}));
}
