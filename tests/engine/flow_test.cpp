// The promise: what is said of slices is so, and what cannot be said is called mixed.
#include "engine/plan/flow.h"

#include "autograd/custom.h"
#include "autograd/scan.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using Kind = AxisFlow::Kind;

namespace {

// A graph whose inputs are followed: along an axis, or (-1) not at all.
struct Followed {
  Graph graph;
  GraphScope scope{graph};
  std::vector<std::pair<NodeId, AxisFlow>> seeds;

  Tensor input(const Spec& spec, int axis = -1) {
    const Tensor t = graph.input(spec);
    if (axis >= 0) seeds.emplace_back(t.id(), AxisFlow::along(axis));
    return t;
  }
  AxisFlow flow(Tensor t, const FlowOptions& options = {.partial = true}) const {
    return follow(graph.nodes(), seeds, options)[static_cast<std::size_t>(t.id())];
  }
  Kind kind(Tensor t) const { return flow(t).kind; }
};

}  // namespace

TEST_CASE("Flow: a sum over slices passes through what is linear in it, and nothing else") {
  Followed f;
  const Tensor x = f.input(f64({3, 4}), 0), y = f.input(f64({3, 4}), 0), c = f.input(f64({4})),
               m = f.input(f64({4, 2}));
  const Tensor s = sum(x, {0}, kKeep), t = sum(y, {0}, kKeep);
  CHECK(f.kind(s) == Kind::partial);
  CHECK(f.flow(s, {}).kind == Kind::mixed);
  for (const Tensor& sums : {s + t, s - t, -s, s * c, c * s, s / c, matmul(s, m), reshape(s, {4})})
    CHECK(f.kind(sums) == Kind::partial);
  for (const Tensor& mixed : {s + c, exp(s), s * t, s / t, c / s, s * y, y + s, matmul(s, transpose(t))})
    CHECK(f.kind(mixed) == Kind::mixed);
  CHECK(f.kind(c * c) == Kind::free);
  CHECK(f.kind(x * c) == Kind::along);
}

TEST_CASE("Flow: slices go through a loop along any axis but that of its steps") {
  const auto looped = [](Tensor start, Tensor rows) {
    return scan(
        [](const Tensors& c, const Tensors& x) -> StepOutput {
          return {{tanh(c[0] + x[0])}, {c[0] * x[0]}};
        },
        {start}, {rows});
  };
  Followed f;
  const ScanResult by_feature = looped(f.input(f64({4}), 0), f.input(f64({5, 4}), 1));
  CHECK(f.kind(by_feature.carries[0]) == Kind::along);
  CHECK(f.flow(by_feature.carries[0]).axis == 0);
  CHECK(f.kind(by_feature.ys[0]) == Kind::along);
  CHECK(f.flow(by_feature.ys[0]).axis == 1);
  const ScanResult by_step = looped(f.input(f64({4})), f.input(f64({5, 4}), 0));
  CHECK(f.kind(by_step.carries[0]) == Kind::mixed);
  CHECK(f.kind(by_step.ys[0]) == Kind::mixed);
  CHECK(contains(f.flow(by_step.ys[0]).why, "it carries something from slice to slice"));
}

TEST_CASE("Flow: what reaches a carry only by another, steps later, reaches it") {
  Followed f;
  const ScanResult r = scan(
      [](const Tensors& c, const Tensors& x) -> StepOutput {
        return {{c[1], c[2], tanh(x[0])}, {}};
      },
      {f.input(f64({4})), f.input(f64({4})), f.input(f64({4}))}, {f.input(f64({5, 4}), 1)});
  for (const Tensor& carry : r.carries) CHECK(f.flow(carry, {.positional = true}).kind == Kind::along);
}

TEST_CASE("Flow: a loop neither makes a sum over slices in its steps nor reads one") {
  Followed f;
  const Tensor rows = f.input(f64({5, 3, 4}), 1), x = f.input(f64({3, 4}), 0);
  const ScanResult adds = scan(
      [](const Tensors& c, const Tensors& now) -> StepOutput {
        return {{c[0] + sum(now[0], {0}, kKeep)}, {}};
      },
      {f.input(f64({1, 4}))}, {rows});
  CHECK(f.kind(adds.carries[0]) == Kind::mixed);
  const ScanResult reads = scan(
      [](const Tensors& c, const Tensors& now) -> StepOutput {
        return {{c[0] + now[0]}, {}};
      },
      {sum(x, {0}, kKeep)}, {f.input(f64({5, 1, 4}))});
  CHECK(f.kind(reads.carries[0]) == Kind::mixed);
  // Nor where everything else would let the sum through.
  const ScanResult makes = scan(
      [](const Tensors&, const Tensors& now) -> StepOutput {
        return {{sum(now[0], {0}, kKeep)}, {}};
      },
      {f.input(f64({1, 4}))}, {rows});
  CHECK(f.kind(makes.carries[0]) == Kind::mixed);
  const ScanResult doubles = scan(
      [](const Tensors& c, const Tensors&) -> StepOutput {
        return {{c[0] * 2.0}, {}};
      },
      {sum(x, {0}, kKeep)}, {}, {.steps = 5});
  CHECK(f.kind(doubles.carries[0]) == Kind::mixed);
}

TEST_CASE(
    "Flow: an axis of one slice keeps its place, whatever is split or left out behind it or before it") {
  // What becomes of the axis that is followed when x takes this shape. Only axes of extent 1 have a choice.
  const auto goes = [](const Shape& from, int axis, const Shape& to) {
    Followed f;
    const AxisFlow flow = f.flow(reshape(f.input(f64(from), axis), to));
    return flow.kind == Kind::along ? flow.axis : -1;
  };
  CHECK(goes({2, 1, 1}, 2, {2, 1, 1, 1}) == 2);  // the sum over features, kept
  CHECK(goes({1, 1, 1}, 2, {1, 1, 1, 1}) == 2);
  CHECK(goes({2, 1, 1, 1}, 2, {2, 1, 1}) == 2);        // and left out
  CHECK(goes({1, 1, 1, 4}, 2, {1, 1, 1, 2, 2}) == 2);  // groups of features
  CHECK(goes({1, 1, 1, 2, 2}, 2, {1, 1, 1, 4}) == 2);
  CHECK(goes({1, 1, 1, 4}, 2, {1, 1, 4}) == 1);  // sequences and heads joined
  CHECK(goes({2, 3, 1, 4}, 2, {6, 1, 4}) == 1);
  CHECK(goes({6, 1, 4}, 1, {2, 3, 1, 4}) == 2);
  CHECK(goes({2, 3, 4}, 1, {2, 12}) == -1);
  CHECK(goes({2, 1, 4}, 1, {2, 4}) == -1);
}

TEST_CASE("Flow: whether a constant differs from slice to slice is asked once of each value") {
  Followed f;
  const Tensor x = f.input(f64({3, 4}), 0);
  Tensor s = full(DType::f64, {3, 4}, 0.5);
  for (int i = 0; i < 60; ++i) s = s * s;  // 2^60 ways from the last to the first
  CHECK(f.kind(x * s) == Kind::along);
}

TEST_CASE("Flow: a function with a rule of its own lets slices through as its forward pass does") {
  Followed f;
  const Tensor x = f.input(f64({3, 4}), 0), y = f.input(f64({3, 4}), 0), row = f.input(f64({1, 4})),
               places = f.graph.input(f64({3, 1}));
  const RuleFn rule = [](const Tensors& in, Tensor, Tensor ct) {
    Tensors out;
    for (const Tensor& t : in) out.push_back(broadcast_to(sum(ct), t.shape()));
    return out;
  };
  const auto flow = [&](const ForwardFn& forward, const Tensors& in, const FlowOptions& options = {}) {
    return f.flow(custom_vjp(forward, rule, in), options);
  };
  const AxisFlow across =
      flow([](const Tensors& in) { return transpose(tanh(in[0]) * in[1] + in[2]); }, {x, y, row});
  CHECK(across.kind == Kind::along);
  CHECK(across.axis == 1);
  CHECK(flow([](const Tensors& in) { return exp(in[0]); }, {row}).kind == Kind::free);
  const AxisFlow mixed = flow([](const Tensors& in) { return softmax(in[0], 0); }, {x});
  CHECK(mixed.kind == Kind::mixed);
  CHECK_MESSAGE(contains(mixed.why, "inside the function: it combines slices"), mixed.why);
  CHECK(flow([](const Tensors& in) { return matmul(in[0], transpose(in[1])); }, {x, y}).kind == Kind::mixed);
  // A constant that differs from slice to slice, and a sum over them: where the caller allows it.
  const ForwardFn times = [](const Tensors& in) { return in[0] * in[1]; };
  CHECK(flow(times, {x, places}).kind == Kind::mixed);
  CHECK(flow(times, {x, places}, {.positional = true}).kind == Kind::along);
  const ForwardFn total = [](const Tensors& in) { return sum(in[0], {0}); };
  CHECK(flow(total, {x}).kind == Kind::mixed);
  CHECK(flow(total, {x}, {.partial = true}).kind == Kind::partial);
}

TEST_CASE(
    "a chain of tens of thousands of ops, which says nothing of slices, is followed without running out of stack") {
  const Function f = trace(
      [](Tensor x, Tensor w) {
        return scan(
                   [&](const Tensors& c, const Tensors& xs) -> StepOutput {
                     Tensor z = slice(c[1], 0, 0, 4);
                     for (int i = 0; i < 40000; ++i) z = sin(z);
                     return {{c[0] * 0.5 + xs[0] * z, c[1] * 0.99}, {}};
                   },
                   {zeros(DType::f64, {4, 2, 2}), w}, {x})
            .carries[0];
      },
      f64({3, 4, 2, 2}), f64({5, 2, 2}));
  const Arrays in{random(f.input_spec(0), 1), Array::zeros(DType::f64, {5, 2, 2})};
  CHECK(f.plan().run(in)[0].same_bits(Array::zeros(DType::f64, {4, 2, 2})));
}

TEST_CASE("Flow: a carry that begins alike in all slices is theirs, where it is asked whether it stays so") {
  const FlowOptions asked{.constant_carries = true};
  const auto added = [](Tensor start, Tensor rows, Tensor more) {
    return scan(
        [more](const Tensors& c, const Tensors& x) -> StepOutput {
          return {{c[0] + x[0], c[1] + more}, {c[1] * x[0]}};
        },
        {start, zeros(DType::f64, {4})}, {rows});
  };
  Followed f;
  const Tensor rows = f.input(f64({5, 4}), 1), alike = zeros(DType::f64, {4}),
               own = constant(Array::of({1, 2, 3, 4}, {4}));
  const ScanResult sum_of_rows = added(alike, rows, alike), begun_apart = added(own, rows, alike),
                   come_apart = added(alike, rows, own);
  CHECK(f.kind(sum_of_rows.carries[0]) == Kind::mixed);  // not asked
  for (const Tensor& t : {sum_of_rows.carries[0], sum_of_rows.ys[0], come_apart.carries[0]}) {
    CHECK(f.flow(t, asked).kind == Kind::along);
    CHECK(f.flow(t, asked).axis == t.rank() - 1);
  }
  // A carry that differs from slice to slice by itself: from its beginning, or from the second step on.
  for (const Tensor& t : {begun_apart.carries[0], come_apart.ys[0]})
    CHECK(f.flow(t, asked).kind == Kind::mixed);
  // It is read before slices come into it.
  const auto replaced = [&](Tensor start) {
    return scan(
               [](const Tensors& c, const Tensors& x) -> StepOutput {
                 return {{x[0]}, {c[0]}};
               },
               {start}, {rows})
        .ys[0];
  };
  CHECK(f.flow(replaced(alike), asked).kind == Kind::along);
  CHECK(f.flow(replaced(own), asked).kind == Kind::mixed);
}
