// Elementwise ops: what holds for each row of elementwise.def, whatever its formula.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/core/index.h"
#include "engine/core/random.h"
#include "ops/ops.h"
#include "tests/ops/sweep.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

std::vector<const Op*> elementwise_ops() {
  std::vector<const Op*> out;
  for (const Op* op : op_table())
    if (is_elementwise(*op)) out.push_back(op);
  return out;
}

bool is_step(const Op& op) { return !op.why_no_derivative.empty(); }

bool takes_integers(const Op& op) {
  const std::vector<Spec> in(op.samples()[0].inputs.size(), Spec{DType::i32, {2}});
  try {
    infer(op, in, {});
    return true;
  } catch (const DTypeError&) {
    return false;
  }
}

std::vector<DType> types_of(const Op& op) {
  std::vector<DType> out{DType::f32, DType::f64};
  if (takes_integers(op)) out.push_back(DType::i32);
  return out;
}

// One array per input, drawn from the domain of the row's first sample.
std::vector<Array> draw(const Op& op, DType dtype, const std::vector<Shape>& shapes, std::uint64_t seed) {
  std::vector<Array> out;
  const OpSample sample = op.samples()[0];
  for (std::size_t k = 0; k < sample.inputs.size(); ++k) {
    const OpSample::Input& in = sample.inputs[k];
    out.push_back(dtype == DType::i32 ? uniform({dtype, shapes[k]}, seed + k, -4, 4)
                                      : uniform({dtype, shapes[k]}, seed + k, in.low, in.high));
  }
  return out;
}

std::size_t arity(const Op& op) { return op.samples()[0].inputs.size(); }

Array run(const Op& op, const std::vector<Array>& in) { return Case{op, {}, DType::f64, ""}.run(in); }

void copy_element(const Array& from, std::int64_t i, Array& to, std::int64_t j) {
  const std::size_t bytes = size_of(from.dtype());
  std::memcpy(to.data() + uz(j) * bytes, from.data() + uz(i) * bytes, bytes);
}

bool same_element(const Array& a, std::int64_t i, const Array& b, std::int64_t j) {
  const std::size_t bytes = size_of(a.dtype());
  return std::memcmp(a.data() + uz(i) * bytes, b.data() + uz(j) * bytes, bytes) == 0;
}

constexpr std::int64_t kWidest = 16;  // elements in the widest SIMD register

// x^b, then its derivatives up to this order.
Arrays derivatives_of_power(double b, int orders, const Array& at) {
  const Function f = trace(
      [&](Tensor x) {
        std::vector<Tensor> out{pow(x, b)};
        for (int order = 1; order <= orders; ++order)
          out.push_back(grad(sum(out.back()), {x}, {.allow_zero = true})[0]);
        return out;
      },
      at.spec());
  return f(Arrays{at});
}

}  // namespace

TEST_CASE("the sweep knows the elementwise ops from their rows") {
  CHECK(elementwise_ops().size() >= 29);
  CHECK(std::ranges::none_of(elementwise_ops(),
                             [](const Op* op) { return op->name == "matmul" || op->name == "sum"; }));
}

TEST_CASE("NaN in is NaN out, and stays at its element") {
  const std::int64_t n = 2 * kWidest + 3;
  for (const Op* op : elementwise_ops())
    for (const DType dtype : {DType::f32, DType::f64}) {
      if (is_step(*op)) continue;
      const std::vector<Array> x = draw(*op, dtype, std::vector<Shape>(arity(*op), {n}), 1);
      const Array y = run(*op, x);
      int worst = 0;
      for (std::size_t k = 0; k < x.size(); ++k) {
        // An op with a mask passes on what the mask chooses; select() has a test of its own.
        if (op->why_no_derivative_in) continue;
        for (std::int64_t at = 0; at < n; ++at) {
          std::vector<Array> bad = x;
          bad[k] = x[k].clone();
          copy_element(Array::of({std::nan("")}, {1}, dtype), 0, bad[k], at);
          const Array z = run(*op, bad);
          for (std::int64_t i = 0; i < n; ++i)
            worst += i == at ? !std::isnan(z.at(i)) : !same_element(y, i, z, i);
        }
      }
      CAPTURE(op->name);
      CAPTURE(name(dtype));
      CHECK(worst == 0);
    }
}

TEST_CASE("NaN in one operand is NaN out, whatever the other operand is") {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  for (const Op* op : elementwise_ops())
    for (const DType dtype : {DType::f32, DType::f64}) {
      if (is_step(*op) || op->why_no_derivative_in || arity(*op) != 2) continue;
      CAPTURE(op->name);
      CAPTURE(name(dtype));
      for (const double other : {0.0, -0.0, 1.0, -1.0, 2.0, inf, -inf, nan}) {
        CAPTURE(other);
        CHECK(std::isnan(run(*op, {Array::scalar(nan, dtype), Array::scalar(other, dtype)}).item()));
        CHECK(std::isnan(run(*op, {Array::scalar(other, dtype), Array::scalar(nan, dtype)}).item()));
        // One element stretched over the other operand.
        const Array many = Array::full(dtype, {kWidest + 1}, other);
        for (const double v : run(*op, {Array::scalar(nan, dtype), many}).to_vector()) CHECK(std::isnan(v));
      }
    }
}

TEST_CASE("select passes NaN from the chosen side only, and comparisons with NaN are false") {
  const double nan = std::nan("");
  const Array mask = Array::of({1, 0, 1, 0}, {4}), a = Array::of({nan, nan, 1, 2}, {4}),
              b = Array::of({3, 4, nan, nan}, {4});
  const Array y = run(*find_op("select"), {mask, a, b});
  CHECK(std::isnan(y.at(0)));
  CHECK(y.at(1) == 4);
  CHECK(y.at(2) == 1);
  CHECK(std::isnan(y.at(3)));
  for (const Op* op : elementwise_ops()) {
    if (!is_step(*op) || arity(*op) != 2) continue;
    CAPTURE(op->name);
    for (const auto& [l, r] : {std::pair{nan, 1.0}, {1.0, nan}, {nan, nan}})
      CHECK(run(*op, {Array::scalar(l), Array::scalar(r)}).item() == 0);
  }
  CHECK(std::isnan(run(*find_op("sign"), {Array::scalar(nan)}).item()));
}

TEST_CASE("a result does not depend on position, length or neighbours, to the bit") {
  const std::int64_t n = 4 * kWidest + 5;
  for (const Op* op : elementwise_ops())
    for (const DType dtype : types_of(*op)) {
      const std::vector<Array> x = draw(*op, dtype, std::vector<Shape>(arity(*op), {n}), 2);
      const Array y = run(*op, x);
      int wrong = 0;
      for (std::int64_t begin = 0; begin <= kWidest; ++begin)
        for (std::int64_t length = 1; begin + length <= n; length += length < kWidest + 2 ? 1 : 7) {
          // In place in the middle of the array: every alignment.
          const std::vector<Spec> in(x.size(), Spec{dtype, {length}});
          Array part(dtype, {length});
          std::vector<const std::byte*> p;
          for (const Array& a : x) p.push_back(a.data() + uz(begin) * size_of(dtype));
          const Attrs attrs;
          op->cpu({*op, in, attrs, part.spec()})(p.data(), part.data());
          for (std::int64_t i = 0; i < length; ++i) wrong += !same_element(part, i, y, begin + i);
        }
      CAPTURE(op->name);
      CAPTURE(name(dtype));
      CHECK(wrong == 0);
    }
}

TEST_CASE("broadcasting is the naive loop, to the bit") {
  constexpr std::uint64_t kShapes = 40;
  for (const Op* op : elementwise_ops()) {
    if (arity(*op) < 2) continue;
    for (std::uint64_t trial = 0; trial < kShapes; ++trial) {
      std::uint64_t draws = 0;
      const auto below = [&](std::uint32_t n) {
        return static_cast<std::int64_t>(random_below(n, 5, trial, draws++));
      };
      Shape full;
      for (std::int64_t rank = below(6); rank > 0; --rank)
        full.push_back(trial % 8 == 0 ? below(3) : below(4) + 1);
      if (trial % 4 == 1 && !full.empty()) full.back() = 20 + below(20);
      std::vector<Shape> shapes;
      for (std::size_t k = 0; k < arity(*op); ++k) {
        Shape s(full.begin() + below(static_cast<std::uint32_t>(full.size()) + 1), full.end());
        for (std::int64_t& extent : s)
          if (below(3) == 0) extent = 1;
        shapes.push_back(std::move(s));
      }
      const DType dtype = trial % 2 ? DType::f32 : DType::f64;
      const std::vector<Array> x = draw(*op, dtype, shapes, trial);
      const Array y = run(*op, x);
      const Shape out_strides = strides_of(y.shape());
      int wrong = 0;
      for (std::int64_t i = 0; i < y.size(); ++i) {
        std::vector<Array> scalars;
        for (const Array& a : x) {
          const Shape strides = strides_of(a.shape());
          const std::size_t skip = y.shape().size() - a.shape().size();
          std::int64_t at = 0;
          for (std::size_t d = 0; d < a.shape().size(); ++d)
            if (a.shape()[d] != 1) at += i / out_strides[skip + d] % y.shape()[skip + d] * strides[d];
          scalars.emplace_back(dtype, Shape{});
          copy_element(a, at, scalars.back(), 0);
        }
        wrong += !same_element(y, i, run(*op, scalars), 0);
      }
      CAPTURE(op->name);
      CAPTURE(trial);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("integers are computed as integers, or refused") {
  const std::vector<double> values{-5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5};
  std::vector<double> left, right;
  for (double a : values)
    for (double b : values) left.push_back(a), right.push_back(b);
  const Shape shape{static_cast<std::int64_t>(left.size())};
  int integer_ops = 0;
  for (const Op* op : elementwise_ops()) {
    CAPTURE(op->name);
    std::vector<Array> x{Array::of(left, shape), Array::of(right, shape), Array::of(right, shape)};
    x.resize(arity(*op));
    std::vector<Array> integers;
    for (const Array& a : x) integers.push_back(a.cast(DType::i32));
    if (takes_integers(*op)) {
      ++integer_ops;
      CHECK(run(*op, integers).same_bits(run(*op, x).cast(DType::i32)));
    } else {
      const std::vector<Spec> in(x.size(), Spec{DType::i32, shape});
      CHECK_THROWS_WITH_AS(infer(*op, in, {}),
                           doctest::Contains("integers are not supported; cast() to f32 or f64 first"),
                           DTypeError);
    }
  }
  CHECK(integer_ops >= 14);
}

TEST_CASE("the slope of x^b at 0 is finite wherever it exists, to order 3") {
  for (const double b : {0.0, 1.0, 2.0, 3.0, 4.0}) {
    CAPTURE(b);
    const Arrays y = derivatives_of_power(b, 3, Array::of({0, 1.5}, {2}));
    double factor = 1;
    for (int order = 0; order <= 3; ++order) {
      CAPTURE(order);
      CHECK(y[uz(order)].at(0) == (b == order ? factor : 0));
      CHECK(y[uz(order)].at(1) == doctest::Approx(factor * std::pow(1.5, b - order)).epsilon(1e-14));
      factor *= b - order;
    }
  }
  // In the exponent: a^b log a, 0 at a = 0; and the mixed derivative, also where b = 0.
  const Function f = trace(
      [](Tensor a, Tensor b) {
        const Tensor db = grad(sum(pow(a, b)), b);
        return std::vector<Tensor>{db, grad(sum(db), a)};
      },
      Spec{DType::f64, {4}}, Spec{DType::f64, {4}});
  const std::vector<Array> y = f({Array::of({0, 1.5, 1.5, 0}, {4}), Array::of({2, 2, 0, 3}, {4})});
  CHECK(y[0].at(0) == 0);
  CHECK(y[0].at(1) == doctest::Approx(2.25 * std::log(1.5)).epsilon(1e-14));
  CHECK(y[1].at(1) == doctest::Approx(1.5 + 3 * std::log(1.5)).epsilon(1e-14));
  CHECK(y[1].at(2) == doctest::Approx(1 / 1.5).epsilon(1e-14));
  for (const Array& a : y)
    for (const double v : a.to_vector()) CHECK(std::isfinite(v));
}

TEST_CASE("max and min pass derivatives of every order to the operand that they give, whichever it is") {
  // Of the cube of what is given, sum of its slopes in a and b, and again.
  const auto slopes = [](const std::function<Tensor(Tensor, Tensor)>& choose) {
    const Function f = trace(
        [&](Tensor a, Tensor b) {
          const Tensor given = choose(a, b);
          Tensor y = sum(given * given * given);
          std::vector<Tensor> out;
          for (int order = 1; order <= 3; ++order) {
            for (Tensor slope : grad(y, {a, b})) out.push_back(slope);
            y = sum(out[out.size() - 2]) + sum(out.back());
          }
          return out;
        },
        Spec{DType::f64, {2}}, Spec{DType::f64, {2}});
    std::vector<std::vector<double>> out;
    for (const Array& g : f({Array::of({1, 4}, {2}), Array::of({2, 3}, {2})})) out.push_back(g.to_vector());
    return out;
  };
  using Slopes = std::vector<std::vector<double>>;
  CHECK(slopes([](Tensor a, Tensor b) { return max(a, b); }) ==
        Slopes{{0, 48}, {12, 0}, {0, 24}, {12, 0}, {0, 6}, {6, 0}});
  CHECK(slopes([](Tensor a, Tensor b) { return min(a, b); }) ==
        Slopes{{3, 0}, {0, 27}, {6, 0}, {0, 18}, {6, 0}, {0, 6}});
}

TEST_CASE("what a choice does not take gets no derivative, however large the cotangent; NaN keeps its own") {
  constexpr double kInf = std::numeric_limits<double>::infinity(),
                   kNaN = std::numeric_limits<double>::quiet_NaN();
  // The slope of the sum of y times an infinite number: that of what was not taken would be 0 * infinity.
  const auto slopes = [](const std::function<Tensor(Tensor, Tensor)>& fn, double a, double b) {
    const Function f = trace(
        [&](Tensor x, Tensor y, Tensor ct) {
          return vjp({fn(x, y)}, {ct}, {x, y}, {.allow_zero = true});
        },
        f64({}), f64({}), f64({}));
    const Arrays out = f(Arrays{Array::scalar(a), Array::scalar(b), Array::scalar(kInf)});
    return std::pair{out[0].item(), out[1].item()};
  };
  const auto of_max = [](Tensor a, Tensor b) { return max(a, b); };
  const auto of_min = [](Tensor a, Tensor b) { return min(a, b); };
  const auto of_relu = [](Tensor a, Tensor) { return relu(a); };
  const auto of_clip = [](Tensor a, Tensor) { return clip(a, -1.0, 1.0); };
  CHECK(slopes(of_max, 1, 2) == std::pair{0.0, kInf});
  CHECK(slopes(of_max, 2, 1) == std::pair{kInf, 0.0});
  CHECK(slopes(of_min, 1, 2) == std::pair{kInf, 0.0});
  CHECK(slopes(of_min, 2, 1) == std::pair{0.0, kInf});
  CHECK(slopes(of_relu, -1, 0).first == 0);
  CHECK(slopes(of_relu, 1, 0).first == kInf);
  CHECK(slopes(of_clip, 7, 0).first == 0);
  CHECK(slopes(of_relu, kNaN, 0).first == kInf);  // and not 0, which would hide it
  CHECK(slopes(of_max, kNaN, 0) == std::pair{kInf, kInf});
  CHECK(slopes(of_min, 0, kNaN) == std::pair{kInf, kInf});
}

TEST_CASE("derivatives of a known power end: none is NaN beside 0, at any order that exists") {
  // At 1e-300 the power -2 is infinite, and 0 times it NaN.
  for (const double b : {0.0, 1.0, 2.0}) {
    CAPTURE(b);
    const Arrays y = derivatives_of_power(b, 4, Array::of({1e-300}, {1}));
    for (std::size_t order = 1; order <= 4; ++order) {
      CAPTURE(order);
      CHECK(std::isfinite(y[order].item()));
      if (static_cast<double>(order) > b) CHECK(y[order].item() == 0);
    }
  }
}

TEST_CASE("where operands are equal, and where a slope jumps, derivatives are what the formula says") {
  // Of two equal numbers the first counts; the slope of what is piecewise linear is 0 where it jumps.
  const auto slopes = [](const std::function<Tensor(Tensor, Tensor)>& fn) {
    const Function f = trace(
        [&](Tensor a, Tensor b) {
          return grad(sum(fn(a, b)), {a, b}, {.allow_zero = true});
        },
        Spec{DType::f64, {3}}, Spec{DType::f64, {3}});
    std::vector<std::vector<double>> out;
    for (const Array& g : f({Array::of({1, 2, 0}, {3}), Array::of({2, 2, -0.0}, {3})}))
      out.push_back(g.to_vector());
    return out;
  };
  using Slopes = std::vector<std::vector<double>>;
  CHECK(slopes([](Tensor a, Tensor b) { return min(a, b); }) == Slopes{{1, 1, 1}, {0, 0, 0}});
  CHECK(slopes([](Tensor a, Tensor b) { return max(a, b); }) == Slopes{{0, 1, 1}, {1, 0, 0}});
  CHECK(slopes([](Tensor a, Tensor b) { return relu(a - b); }) == Slopes{{0, 0, 0}, {0, 0, 0}});
  CHECK(slopes([](Tensor a, Tensor b) { return relu(b - a); }) == Slopes{{-1, 0, 0}, {1, 0, 0}});
  CHECK(slopes([](Tensor a, Tensor b) { return abs(a - b); }) == Slopes{{-1, 0, 0}, {1, 0, 0}});
}
