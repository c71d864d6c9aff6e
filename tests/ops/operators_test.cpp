// What a user writes without thinking: axes in braces, compound assignment, comparisons, where, clip. Values
// against the numbers, derivatives against differences.
#include <doctest/doctest.h>

#include <cmath>

#include "ops/ops.h"
#include "tests/ops/sweep.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

const Array kX = Array::of({1, -2, 3, 4, 5, -6}, {2, 3}), kY = Array::of({1, 0.5, 4, -4, 2, -7}, {2, 3});

using Binary = Tensor (*)(Tensor x, Tensor y);

Array of(Binary fn) { return trace(fn, kX.spec(), kY.spec())(kX, kY); }

void gives(Binary fn, const std::vector<double>& values, const Shape& shape) {
  const Array y = of(fn);
  CHECK(y.shape() == shape);
  CHECK(y.to_vector() == values);
}

// Derivatives to order 2, and in f32.
void derives(std::string what, Binary fn) {
  const Subject s{.what = what,
                  .fn = [fn](const std::vector<Tensor>& in) { return std::vector<Tensor>{fn(in[0], in[1])}; },
                  .inputs = {kX, kY},
                  .active = {},
                  .orders = 2};
  const Failures failures = check_every_way(s);
  CAPTURE(join(failures));
  CHECK(failures.empty());
}

}  // namespace

TEST_CASE("axes in braces are axes, for every reduction, kept or not") {
  gives([](Tensor x, Tensor) { return max(x, {0}); }, {4, 5, 3}, {3});
  gives([](Tensor x, Tensor) { return max(x, {1}, kKeep); }, {3, 5}, {2, 1});
  gives([](Tensor x, Tensor) { return min(x, {0}); }, {1, -2, -6}, {3});
  gives([](Tensor x, Tensor) { return min(x, {-1}, kKeep); }, {-2, -6}, {2, 1});
  gives([](Tensor x, Tensor) { return min(x, {0, 1}, kKeep); }, {-6}, {1, 1});
  gives([](Tensor x, Tensor) { return sum(x, {0}); }, {5, 3, -3}, {3});
  gives([](Tensor x, Tensor) { return sum(x, {0}, kKeep); }, {5, 3, -3}, {1, 3});
  gives([](Tensor x, Tensor) { return mean(x, {0}); }, {2.5, 1.5, -1.5}, {3});
  gives([](Tensor x, Tensor) { return mean(x, {0}, kKeep); }, {2.5, 1.5, -1.5}, {1, 3});
  gives([](Tensor x, Tensor) { return mean(x, {0, 1}, kKeep) * 6.0; }, {5}, {1, 1});
  gives([](Tensor x, Tensor) { return max(x, 0); }, {1, 0, 3, 4, 5, 0}, {2, 3});  // a number, not an axis
  gives([](Tensor x, Tensor) { return sum(x, -1); }, {2, 3}, {2});
  gives([](Tensor x, Tensor) { return sum(x, 0, kKeep); }, {5, 3, -3}, {1, 3});
  gives([](Tensor x, Tensor) { return mean(x, 1, kKeep) * 3.0; }, {2, 3}, {2, 1});
  gives([](Tensor x, Tensor) { return sum(x, {}); }, kX.to_vector(), {2, 3});  // over none
  gives([](Tensor x, Tensor) { return max(x); }, {5}, {});
  gives([](Tensor x, Tensor) { return min(x); }, {-6}, {});
  gives([](Tensor x, Tensor) { return min(x, std::vector<int>{1}); }, {-2, -6}, {2});
  derives("min over an axis", [](Tensor x, Tensor y) { return min(square(x) * y, {0}); });
  derives("max, kept", [](Tensor x, Tensor y) { return max(square(x) * y, {1}, kKeep) * x; });
  const Array ties = Array::of({2, 2, 3}, {3});  // share the derivative
  const auto slope = [](Tensor x) { return grad(min(x, {0}), x); };
  CHECK(trace(slope, ties.spec())(ties).to_vector() == std::vector<double>{0.5, 0.5, 0});
}

TEST_CASE("compound assignment gives the name to the result, and leaves other names alone") {
  gives(
      [](Tensor x, Tensor y) {
        Tensor a = x;
        a += y;
        a -= 1;
        a *= x;
        a /= 2.0;
        return a;
      },
      {0.5, 2.5, 9, -2, 15, 42}, {2, 3});
  gives(
      [](Tensor x, Tensor) {
        Tensor a = x;
        (a += 1.0) *= 2.0;
        return x;
      },
      kX.to_vector(), {2, 3});
  derives("compound assignment", [](Tensor x, Tensor y) {
    Tensor a = x;
    ((a += square(y)) *= x) /= y;
    return a -= y;
  });
  Graph g;
  Tensor a = g.input(Spec{DType::f64, {2}}, "a");
  a += 1.0;
  CHECK(describe(a).find("operators_test.cpp") != std::string::npos);
}

TEST_CASE("comparisons make masks of 0 and 1, of the operands' type, and never are derived") {
  gives([](Tensor x, Tensor y) { return x < y; }, {0, 1, 1, 0, 0, 0}, {2, 3});
  gives([](Tensor x, Tensor y) { return x <= y; }, {1, 1, 1, 0, 0, 0}, {2, 3});
  gives([](Tensor x, Tensor y) { return x > y; }, {0, 0, 0, 1, 1, 1}, {2, 3});
  gives([](Tensor x, Tensor y) { return x >= y; }, {1, 0, 0, 1, 1, 1}, {2, 3});
  gives([](Tensor x, Tensor y) { return equal(x, y); }, {1, 0, 0, 0, 0, 0}, {2, 3});
  gives([](Tensor x, Tensor) { return 1 < x; }, {0, 0, 1, 1, 1, 0}, {2, 3});
  gives([](Tensor x, Tensor) { return (x >= -2.0) * (x <= 3.0); }, {1, 1, 1, 0, 0, 0}, {2, 3});
  Graph g;
  const Tensor x = g.input(Spec{DType::f64, {2}}, "x"), y = g.input(Spec{DType::f64, {2}}, "y");
  CHECK(x == x);  // the same tensor
  CHECK(x != y);
  CHECK_THROWS_AS(grad(sum(x < y), {x}), GradError);
}

TEST_CASE("where chooses, and the derivative goes to what is chosen") {
  gives([](Tensor x, Tensor y) { return where(x > 0, x, y); }, {1, 0.5, 3, 4, 5, -7}, {2, 3});
  gives([](Tensor x, Tensor) { return where(x > 0, x, 0.0); }, {1, 0, 3, 4, 5, 0}, {2, 3});
  gives([](Tensor x, Tensor) { return where(x > 0, 1, 2); }, {1, 2, 1, 1, 1, 2}, {2, 3});
  derives("where", [](Tensor x, Tensor y) { return where(x > 0.5, square(x) * y, y * square(y)); });
}

TEST_CASE("clip holds numbers between bounds, and passes the derivative between them, bounds included") {
  gives([](Tensor x, Tensor) { return clip(x, -2, 3); }, {1, -2, 3, 3, 3, -2}, {2, 3});
  gives([](Tensor x, Tensor y) { return clip(x, y, 3.5); }, {1, 0.5, 3.5, 3.5, 3.5, -6}, {2, 3});
  gives([](Tensor x, Tensor) { return clip(x, 3, -1); }, {-1, -1, -1, -1, -1, -1}, {2, 3});
  gives([](Tensor x, Tensor) { return grad(sum(clip(x, -2, 3)), x); }, {1, 1, 1, 0, 0, 0}, {2, 3});
  derives("clip", [](Tensor x, Tensor y) { return clip(square(x) * y, y - 7.3, 90.0); });
  const Array nan = Array::of({std::nan("")}, {1});
  CHECK(std::isnan(trace([](Tensor x) { return clip(x, -1, 1); }, nan.spec())(nan).item()));
}

TEST_CASE("a tensor that names nothing is no number 0, in any operator") {
  const auto refused = [](const std::function<Tensor(Tensor x, Tensor nothing)>& fn) {
    return testing::message_of<GraphError>([&] {
      trace([&](Tensor x) { return fn(x, Tensor()); }, Spec{DType::f64, {2}});
    });
  };
  const std::vector<std::function<Tensor(Tensor, Tensor)>> uses{
      [](Tensor x, Tensor n) { return x * n; },
      [](Tensor x, Tensor n) { return n + x; },
      [](Tensor x, Tensor n) { return x -= n; },
      [](Tensor x, Tensor n) { return n += x; },
      [](Tensor x, Tensor n) { return x < n; },
      [](Tensor x, Tensor n) { return max(x, n); },
      [](Tensor x, Tensor n) { return where(n, x, x); },
      [](Tensor x, Tensor n) { return where(x, n, 1.0); },
      [](Tensor x, Tensor n) { return clip(x, n, 1.0); },
      [](Tensor x, Tensor n) { return pow(x, n); },
      [](Tensor, Tensor n) { return sin(n); }};
  for (const auto& use : uses) CHECK(testing::contains(refused(use), "names nothing"));
}
