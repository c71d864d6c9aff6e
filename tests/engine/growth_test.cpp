// The promise: a plan costs what its program is long, whatever the program is made of. Processor time of the
// calling thread, so that neighbours count little; a cost that grows with the square of the length is eight
// times what is allowed.
#include <cmath>
#include <ctime>
#include <tuple>

#include "engine/plan/cut.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

using Make = Function (*)(int n);

double seconds_of_planning(Make make, int n) {
  const Function f = make(n);
  const auto now = [] {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  double best = INFINITY;
  for (int turn = 0; turn < 3; ++turn) {
    const double start = now();
    f.plan();
    best = std::min(best, now() - start);
  }
  return best;
}

Function many_scans(int n) {
  return trace(
      [n](Tensor x) {
        const auto step = [](const Tensors& carry, const Tensors&) -> StepOutput {
          return {{tanh(carry[0])}, {}};
        };
        Tensor now = x;
        for (int i = 0; i < n; ++i) now = scan(step, {now}, {}, {.steps = 2}).carries[0];
        return grad(sum(now), x);
      },
      f64({2}));
}

Function long_body(int n) {
  return trace(
      [n](Tensor x, Tensor w) {
        const auto step = [&](const Tensors& carry, const Tensors&) -> StepOutput {
          Tensor now = carry[0];
          for (int i = 0; i < n; ++i) now = tanh(now * w);
          return {{now}, {}};
        };
        return grad(sum(scan(step, {x}, {}, {.steps = 2}).carries[0]), w);
      },
      f64({2}), f64({2}));
}

Function waiting_values(int n) {
  return trace(
      [n](Tensor x) {
        std::vector<Tensor> leaves;
        for (int i = 0; i < n; ++i) leaves.push_back(tanh(x * (1 + i)));
        Tensor all = leaves.back();
        for (std::size_t i = leaves.size() - 1; i-- > 0;) all = all * leaves[i];
        return all;
      },
      f64({2}));
}

}  // namespace

TEST_CASE("planning costs what the program is long: scans, a long body, values that wait" *
          doctest::test_suite("slow")) {
  constexpr int kFactor = 16;
  for (const auto& [name, make, n] : {std::tuple<const char*, Make, int>{"many scans", many_scans, 500},
                                      {"a long body", long_body, 1000},
                                      {"waiting values", waiting_values, 2000}}) {
    CAPTURE_BOUND(name);
    const double few = seconds_of_planning(make, n), many = seconds_of_planning(make, kFactor * n);
    CAPTURE(few);
    CAPTURE(many);
    CHECK(many < 3 * kFactor * few);
  }
}

TEST_CASE("a minimum cut looks at each edge of a long chain a few times") {
  // A ladder, as a body of n cheap ops makes it: each value can be computed from the one before, or kept.
  const auto looks_of = [](int n) {
    MinimumCut cut(2 + 2 * n);
    for (int v = 0; v < n; ++v) {
      cut.add(0, 2 + 2 * v, 1);
      cut.add(2 + 2 * v, 3 + 2 * v, 16);
      if (v > 0) cut.add(1 + 2 * v, 2 + 2 * v, MinimumCut::kNever);
      if (v % 2 == 0) cut.add(3 + 2 * v, 1, MinimumCut::kNever);
    }
    cut.find(0, 1);
    return cut.looks();
  };
  const std::int64_t few = looks_of(1'000), many = looks_of(16'000);
  CHECK(many < 20 * few);
}

TEST_CASE("a checkpointed function may be longer than calls can nest") {
  const Function f = trace(
      [](Tensor x, Tensor w) {
        const Tensors y = checkpoint([&] {
          Tensor now = x;
          for (int i = 0; i < (kSanitized ? 20'000 : 100'000); ++i) now = tanh(now * w);
          return Tensors{now};
        });
        return grad(sum(y[0]), x);
      },
      f64({1}), f64({1}));
  CHECK(f(Array::of({0.5}, {1}), Array::of({1.0}, {1})).at(0) > 0);
}
