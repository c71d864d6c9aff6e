// Whole Jacobians and Hessians: against vjp by each unit vector, and as values that are differentiated again.
#include "autograd/jacobian.h"

#include <cmath>

#include "engine/core/index.h"
#include "tests/autograd/deriving.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

const std::vector<Spec> kIn{f64({2, 3}), f64({3})};
Tensor curved(const Tensors& in) {
  return tanh(in[0] * in[1]) + square(sum(in[0] * in[0], {1}, kKeep));
}  // [2, 3]

// The same, a product for each element of y, in one trace.
Tensor by_rows(Tensor y, Tensor x) {
  Tensors rows;
  for (std::int64_t i = 0; i < y.spec().size(); ++i) {
    std::vector<double> unit(uz(y.spec().size()), 0.0);
    unit[uz(i)] = 1;
    rows.push_back(reshape(vjp({y}, {constant(Array::of(unit, y.shape(), y.dtype()))}, {x})[0], {1, -1}));
  }
  Shape shape = y.shape();
  shape.insert(shape.end(), x.shape().begin(), x.shape().end());
  return reshape(concat(rows, 0), shape);
}

}  // namespace

TEST_CASE("A Jacobian has in each row the product with a unit vector, as a value and differentiated again") {
  for (const std::size_t by : {0U, 1U})
    for (int order = 0; order <= 2; ++order) {
      CAPTURE(by);
      CAPTURE(order);
      const auto with = [&](Tensor (*whole)(Tensor, Tensor)) {
        return derivative([&](const Tensors& in) { return sum(sin(whole(curved(in), in[by]))); }, kIn, order);
      };
      const Arrays at = random(kIn, 4);
      CHECK(max_error(with([](Tensor y, Tensor x) { return jacobian(y, x); })(at), with(by_rows)(at)) <
            1e-12);
    }
  const Function f = trace([](const Tensors& in) { return Tensors{jacobian(curved(in), in[1])}; }, kIn);
  CHECK(f.output_spec(0) == f64({2, 3, 3}));
}

TEST_CASE("A Hessian is symmetric, that of a cubic is known, and that of a linear loss is refused or zero") {
  const Function f = trace(
      [](const Tensors& in) {
        return Tensors{hessian(sum(curved(in)), in[0]), hessian(sum(in[1] * square(in[1])), in[1])};
      },
      kIn);
  const Arrays at = random(kIn, 4), out = f(at);
  REQUIRE(out[0].shape() == Shape{2, 3, 2, 3});
  for (std::int64_t i = 0; i < 6; ++i)
    for (std::int64_t j = 0; j < 6; ++j) CHECK(out[0].at(i * 6 + j) == doctest::Approx(out[0].at(j * 6 + i)));
  for (std::int64_t i = 0; i < 3; ++i)
    for (std::int64_t j = 0; j < 3; ++j)
      CHECK(out[1].at(i * 3 + j) == doctest::Approx(i == j ? 6 * at[1].at(i) : 0.0));
  const auto said = [&](const std::function<Tensor(Tensor)>& of) {
    return message_of<GradError>([&] { trace([&](const Tensors& in) { return Tensors{of(in[1])}; }, kIn); });
  };
  CHECK(said([](Tensor x) { return jacobian(sign(x), x); }).starts_with("[jacobian] y = "));
  CHECK(said([](Tensor x) { return hessian(x, x); }).starts_with("[hessian] y must be one floating number"));
  // Of several values the one that does not depend says where its path is cut, as it does alone.
  for (const bool alone : {true, false}) {
    CAPTURE(alone);
    const std::string text = said([&](Tensor x) {
      return jvp(alone ? Tensors{sign(x)} : Tensors{square(x), sign(x)}, {x}, {x}).back();
    });
    CHECK(contains(text, "piecewise constant"));
    CHECK(contains(text, "ask for it with allow_zero"));
  }
  CHECK(contains(message_of<GradError>([&] {
                   trace([](const Tensors& in) { return Tensors{hessian(sum(in[1] * 2.0), in[1])}; }, kIn);
                 }),
                 "[hessian] y = "));
  const Function zero =
      trace([](const Tensors& in) { return Tensors{hessian(sum(in[1]), in[1], {.allow_zero = true})}; }, kIn);
  CHECK(zero(at)[0].to_vector() == std::vector<double>(9, 0.0));
}

TEST_CASE("Jacobians of one element, of none, in f32, in a loop and in an eager graph") {
  Graph eager(GraphMode::eager);
  const Tensor x = eager.input(Array::of({1, 2}, {2}, DType::f32));
  CHECK(eval(jacobian(square(x), x)).to_vector() == std::vector<double>{2, 0, 0, 4});
  CHECK(eval(jacobian(sum(square(x)), x)).to_vector() == std::vector<double>{2, 4});
  CHECK(jacobian(slice(x, 0, 0, 0), x).shape() == Shape{0, 2});
  const Function f = trace(
      [](Tensor w, Tensor xs) {
        return scan(
                   [](const Tensors& c, const Tensors& now) -> StepOutput {
                     return {{c[0] + sum(jacobian(sin(c[0] * now[0]), c[0]), {1})}, {}};
                   },
                   {w}, {xs})
            .carries[0];
      },
      f64({3}), f64({4, 3}));
  const Arrays at = random({f64({3}), f64({4, 3})}, 2);
  std::vector<double> w = at[0].to_vector();
  for (int t = 0; t < 4; ++t)
    for (int i = 0; i < 3; ++i) {
      const double s = at[1].at(t * 3 + i);
      w[uz(i)] += s * std::cos(w[uz(i)] * s);
    }
  const Array out = f(at)[0];
  for (int i = 0; i < 3; ++i) CHECK(out.at(i) == doctest::Approx(w[uz(i)]).epsilon(1e-13));
}
