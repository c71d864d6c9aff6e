// How close the elementwise functions come to the true values, and what they do far out. Bounds are measured,
// with AVX2 and with SSE2 alone, plus slack; the reference is long double.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "autograd/grad.h"
#include "ops/ops.h"
#include "tests/ops/sweep.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

using Real = long double;
constexpr double kInf = std::numeric_limits<double>::infinity();

Real sigmoid_of(Real x) { return 1 / (1 + std::exp(-x)); }
Real softplus_of(Real x) { return (x > 0 ? x : 0) + std::log1p(std::exp(-std::abs(x))); }
Real gelu_of(Real x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(Real(-1))) * (x + 0.044715L * x * x * x)));
}

struct Function1 {
  std::string_view op;
  Real (*truth)(Real);
  double low, high;       // of x; decades: of log10 x
  double ulps32, ulps64;  // largest error allowed, in units in the last place of the true value
  bool decades = false;
};

// The largest error in units in the last place, over a dense set of points.
template <class T>
double worst_ulps(const Function1& f) {
  constexpr std::int64_t kPoints = 40001;
  Array x = uniform({dtype_of<T>(), {kPoints}}, 3, f.low, f.high);
  if (f.decades)
    for (T& v : x.as<T>()) v = std::pow(T(10), v);
  const Array y = Case{*find_op(f.op), {}, DType::f64, ""}.run({x});
  double worst = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(kPoints); ++i) {
    const Real truth = f.truth(static_cast<Real>(x.as<T>()[i]));
    const T size = std::abs(static_cast<T>(truth));
    const Real ulp = std::nextafter(size, std::numeric_limits<T>::infinity()) - size;
    worst = std::max(worst, static_cast<double>(std::abs(static_cast<Real>(y.as<T>()[i]) - truth) / ulp));
  }
  return worst;
}

struct Far {
  double value, slope;
};

// op(x) and its derivative.
Far at(std::string_view name, double x, DType dtype) {
  const Op& op = *find_op(name);
  const Function f = trace(
      [&](Tensor t) {
        const Tensor y = emit(op, {t});
        return std::vector<Tensor>{y, grad(y, {t})[0]};
      },
      Spec{dtype, {}});
  const std::vector<Array> out = f(std::vector<Array>{Array::scalar(x, dtype)});
  return {out[0].item(), out[1].item()};
}

}  // namespace

TEST_CASE("elementwise functions are true to a few units in the last place") {
  const Function1 functions[] = {
      {"exp", [](Real x) { return std::exp(x); }, -87, 88, 2, 2.5},
      {"log", [](Real x) { return std::log(x); }, -37, 37, 1.5, 2, true},
      {"log", [](Real x) { return std::log(x); }, 0.5, 2, 1.5, 2},
      {"tanh", [](Real x) { return std::tanh(x); }, -10, 10, 9, 3},
      {"tanh", [](Real x) { return std::tanh(x); }, -30, 0, 6, 3, true},
      {"sin", [](Real x) { return std::sin(x); }, -1000, 1000, 3, 1},
      {"cos", [](Real x) { return std::cos(x); }, -1000, 1000, 3, 1},
      {"sin", [](Real x) { return std::sin(x); }, -1e6, 1e6, 3, 1},
      {"cos", [](Real x) { return std::cos(x); }, -1e6, 1e6, 3, 1},
      {"sqrt", [](Real x) { return std::sqrt(x); }, -37, 37, 0.501, 0.501, true},
      {"rsqrt", [](Real x) { return 1 / std::sqrt(x); }, -37, 37, 1.51, 1.51, true},
      {"reciprocal", [](Real x) { return 1 / x; }, -37, 37, 0.501, 0.501, true},
      {"sigmoid", sigmoid_of, -85, 85, 4, 3},
      {"silu", [](Real x) { return x * sigmoid_of(x); }, -85, 85, 4, 3.5},
      {"softplus", softplus_of, -85, 85, 3.5, 3},
      {"gelu_tanh", gelu_of, -1, 10, 12, 6},
  };
  for (const Function1& f : functions) {
    CAPTURE(f.op);
    CAPTURE(f.low);
    CHECK(worst_ulps<float>(f) <= f.ulps32);
    CHECK(worst_ulps<double>(f) <= f.ulps64);
  }
  // Negative control: the bounds are not beyond what a wrong digit does.
  CHECK(worst_ulps<float>({"exp", [](Real x) { return std::exp(x * (1 + 1e-6L)); }, -87, 88, 0, 0}) > 100);
}

// For x < -1 the formula adds 1 and a number near -1: relative to its tiny values the error is large,
// absolutely it is not.
TEST_CASE("the negative tail of gelu is true to rounding of x") {
  for (const auto& [dtype, bound] : {std::pair{DType::f32, 2e-6}, {DType::f64, 2e-15}}) {
    const Array x = uniform({dtype, {20001}}, 4, -12, 0);
    const Array y = Case{*find_op("gelu_tanh"), {}, DType::f64, ""}.run({x});
    double worst = 0;
    for (std::int64_t i = 0; i < x.size(); ++i)
      worst = std::max(worst, std::abs(y.at(i) - static_cast<double>(gelu_of(x.at(i)))));
    CHECK(worst < bound);
  }
}

TEST_CASE("activations and their derivatives have the right limits, and are finite at 1e4") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    CAPTURE(name(dtype));
    const auto check = [&](std::string_view op, double x, double value, double slope) {
      CAPTURE(op);
      CAPTURE(x);
      const Far f = at(op, x, dtype);
      constexpr double kTiny = 1e-40;
      CHECK((f.value == value || std::abs(f.value - value) < kTiny));
      CHECK((f.slope == slope || std::abs(f.slope - slope) < kTiny));
    };
    for (const double far : {100.0, 1e4, 1e9}) {
      check("sigmoid", far, 1, 0), check("sigmoid", -far, 0, 0);
      check("tanh", far, 1, 0), check("tanh", -far, -1, 0);
      check("relu", far, far, 1), check("relu", -far, 0, 0);
      check("abs", far, far, 1), check("abs", -far, far, -1);
      check("silu", far, far, 1), check("softplus", far, far, 1), check("gelu_tanh", far, far, 1);
      check("gelu_tanh", -far, 0, 0);
    }
    for (const double far : {1e4, 1e9}) {
      check("silu", -far, 0, 0), check("softplus", -far, 0, 0), check("exp", -far, 0, 0);
    }
    check("exp", -kInf, 0, 0);
    check("exp", kInf, kInf, kInf);
    check("sigmoid", kInf, 1, 0), check("sigmoid", -kInf, 0, 0);
    check("tanh", kInf, 1, 0), check("tanh", -kInf, -1, 0);
    check("softplus", kInf, kInf, 1), check("softplus", -kInf, 0, 0);
    check("relu", kInf, kInf, 1), check("relu", -kInf, 0, 0);
    check("log", kInf, kInf, 0), check("log", 0, -kInf, kInf);
    check("sqrt", kInf, kInf, 0), check("sqrt", 0, 0, kInf);
    CHECK(at("rsqrt", kInf, dtype).value == 0);
    CHECK(at("rsqrt", 0, dtype).value == kInf);
    CHECK(at("reciprocal", kInf, dtype).value == 0);
    CHECK(std::isnan(at("log", -1, dtype).value));
    CHECK(std::isnan(at("sqrt", -1, dtype).value));
    CHECK(std::isnan(at("rsqrt", -kInf, dtype).value));
  }
  // Denormals keep their root.
  CHECK(at("sqrt", 1e-40, DType::f32).value == doctest::Approx(1e-20).epsilon(1e-4));
}
