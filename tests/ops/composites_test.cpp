// Composites against naive loops, with their gradients at orders 1 and 2.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "engine/core/index.h"
#include "ops/ops.h"
#include "tests/ops/sweep.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

template <class Fn>
TraceFn one(Fn fn) {
  return [fn](const std::vector<Tensor>& in) { return std::vector<Tensor>{fn(in)}; };
}

Array run(const TraceFn& fn, const std::vector<Array>& x) {
  std::vector<Spec> specs;
  for (const Array& a : x) specs.push_back(a.spec());
  return trace(fn, specs)(x).at(0);
}

Array f64(const Shape& shape, std::uint64_t seed) { return uniform({DType::f64, shape}, seed, -1.5, 1.5); }

// fn against `naive`, which fills the output from the inputs; in f32 too; and its derivatives.
template <class Naive>
void check_composite(std::string what, const TraceFn& fn, const std::vector<Array>& x, Naive naive) {
  CAPTURE(what);
  const Array y = run(fn, x);
  Array expected(y.spec());
  naive(expected.as<double>());
  CHECK(difference(y, expected) <= 1e-13);
  std::vector<Array> narrow, wide;
  for (const Array& a : x)
    narrow.push_back(is_float(a.dtype()) ? a.cast(DType::f32) : a),
        wide.push_back(is_float(a.dtype()) ? narrow.back().cast(DType::f64) : a);
  CHECK(difference(run(fn, narrow).cast(DType::f64), run(fn, wide)) <= 3e-6);
  const Subject s{.what = what, .fn = fn, .inputs = x, .active = {}, .orders = 2};
  const Failures failures = check_every_way(s);
  INFO(join(failures));
  CHECK(failures.empty());
}

// naive over rows of the last axis: row(in, out, n) for each.
template <class Row>
auto by_rows(const Array& x, Row row) {
  return [&x, row](std::span<double> out) {
    const std::int64_t n = x.shape().back(), per = static_cast<std::int64_t>(out.size()) * n / x.size();
    for (std::int64_t r = 0; r * n < x.size(); ++r)
      row(x.as<double>().data() + r * n, out.data() + r * per, n);
  };
}

}  // namespace

TEST_CASE("softmax, log_softmax and logsumexp are their formulas, along any axis") {
  const Array x = f64({3, 2, 5}, 1);
  for (const int axis : {0, 1, 2, -1, -3}) {
    const auto over = [&](auto entry, bool keeps) {  // entry(values along the axis, their position) -> output
      return [=, &x](std::span<double> out) {
        const Shape strides = strides_of(x.shape());
        const auto d = uz(axis < 0 ? axis + 3 : axis);
        std::size_t next = 0;
        for (std::int64_t i = 0; i < x.size(); ++i) {
          const std::int64_t place = i / strides[d] % x.shape()[d];
          if (!keeps && place > 0) continue;
          std::vector<double> v;
          for (std::int64_t k = 0; k < x.shape()[d]; ++k) v.push_back(x.at(i + (k - place) * strides[d]));
          out[keeps ? uz(i) : next++] = entry(v, uz(place));
        }
      };
    };
    const auto total = [](const std::vector<double>& v) {
      double s = 0;
      for (double e : v) s += std::exp(e);
      return s;
    };
    check_composite(fmt::format("softmax over {}", axis),
                    one([=](const auto& in) { return softmax(in[0], axis); }), {x},
                    over([=](const auto& v, std::size_t i) { return std::exp(v[i]) / total(v); }, true));
    check_composite(fmt::format("log_softmax over {}", axis),
                    one([=](const auto& in) { return log_softmax(in[0], axis); }), {x},
                    over([=](const auto& v, std::size_t i) { return v[i] - std::log(total(v)); }, true));
    check_composite(fmt::format("logsumexp over {}", axis),
                    one([=](const auto& in) { return logsumexp(in[0], axis); }), {x},
                    over([=](const auto& v, std::size_t) { return std::log(total(v)); }, false));
  }
  CHECK(run(one([](const auto& in) { return logsumexp(in[0], 1, kKeep); }), {x}).shape() == Shape{3, 1, 5});
}

TEST_CASE("logsumexp of infinities is infinite, and of what is no number none") {
  const double inf = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::f32, DType::f64}) {
    const auto of = [&](double a, double b) {
      return run(one([](const auto& in) { return logsumexp(in[0], 0); }), {Array::of({a, b}, {2}, dtype)})
          .item();
    };
    CHECK(of(inf, 0) == inf);
    CHECK(of(inf, -inf) == inf);
    CHECK(of(-inf, -inf) == -inf);
    CHECK(of(-inf, 2) == 2);
    CHECK(std::isnan(of(std::nan(""), 0)));
    CHECK(std::isnan(of(std::nan(""), inf)));
  }
}

TEST_CASE("cross_entropy is minus the log of the probability of the label") {
  const Array x = f64({2, 3, 4}, 2), labels = Array::of({0, 3, 1, 2, 2, 0}, {2, 3}, DType::i32);
  const TraceFn loss = one([](const auto& in) { return cross_entropy(in[0], in[1]); });
  check_composite("cross_entropy", loss, {x, labels}, [&](std::span<double> out) {
    for (std::size_t i = 0; i < 6; ++i) {
      double total = 0;
      for (std::int64_t c = 0; c < 4; ++c) total += std::exp(x.at(static_cast<std::int64_t>(i) * 4 + c));
      out[i] = std::log(total) - x.at(static_cast<std::int64_t>(i) * 4 +
                                      static_cast<std::int64_t>(labels.at(static_cast<std::int64_t>(i))));
    }
  });
  // A label that is no class is an error, not a loss.
  for (const double bad : {-1.0, 4.0})
    CHECK_THROWS_WITH_AS(run(loss, {f64({1, 4}, 1), Array::of({bad}, {1}, DType::i32)}),
                         doctest::Contains("is outside of the table's 4 rows"), ValueError);
}

TEST_CASE("extreme logits give finite losses and gradients") {
  const double inf = std::numeric_limits<double>::infinity();
  const auto with_gradient = [](const TraceFn& fn) -> TraceFn {
    return [fn](const std::vector<Tensor>& in) {
      const Tensor y = fn(in)[0];
      return std::vector<Tensor>{y, grad(sum(square(y)), {in[0]})[0]};
    };
  };
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Array x = Array::of({1e4, -1e4, 0, -1e4, -1e4, -1e4, 1e4, 1e4, 1e4}, {3, 3}, dtype),
                labels = Array::of({1, 2, 0}, {3}, DType::i32);
    for (const TraceFn& fn : {one([](const auto& in) { return softmax(in[0], -1); }),
                              one([](const auto& in) { return log_softmax(in[0], -1); }),
                              one([](const auto& in) { return logsumexp(in[0], -1); }),
                              one([](const auto& in) { return cross_entropy(in[0], in[1]); })})
      for (const Array& out : trace(with_gradient(fn), {x.spec(), labels.spec()})({x, labels}))
        for (const double v : out.to_vector()) CHECK(std::isfinite(v));
    const Array losses = run(one([](const auto& in) { return cross_entropy(in[0], in[1]); }), {x, labels});
    CHECK(losses.at(0) == 2e4);
    CHECK(losses.at(1) == doctest::Approx(std::log(3.0)).epsilon(1e-3));  // next to 1e4 in f32
    // Classes masked by -infinity have no probability, no gradient, and do no harm.
    const Array masked = Array::of({1, -inf, 2, 0.5, 3, -inf}, {2, 3}, dtype),
                label = Array::of({2, 0}, {2}, DType::i32);
    const auto out = trace(with_gradient(one([](const auto& in) { return cross_entropy(in[0], in[1]); })),
                           {masked.spec(), label.spec()})({masked, label});
    CHECK(out[0].at(0) == doctest::Approx(std::log1p(std::exp(-1.0))).epsilon(1e-6));
    CHECK(out[1].at(1) == 0);
    CHECK(out[1].at(5) == 0);
    const Array p = run(one([](const auto& in) { return softmax(in[0], -1); }), {masked});
    CHECK(p.at(1) == 0);
    CHECK(p.at(0) + p.at(2) == doctest::Approx(1).epsilon(1e-6));
    // NaN is not hidden.
    const Array bad = Array::of({1, std::nan(""), 2}, {1, 3}, dtype);
    CHECK(std::isnan(run(one([](const auto& in) { return cross_entropy(in[0], in[1]); }),
                         {bad, Array::of({0}, {1}, DType::i32)})
                         .item()));
  }
}

TEST_CASE("normalisations are their formulas over the last axis") {
  const Array x = f64({2, 3, 5}, 3), gain = f64({5}, 4), shift = f64({3, 1}, 5);
  constexpr double kEps = 1e-3;
  check_composite("layer_norm", one([](const auto& in) { return layer_norm(in[0], in[1], in[2], kEps); }),
                  {x, gain, shift}, [&](std::span<double> out) {
                    for (std::int64_t r = 0; r < 6; ++r) {
                      double mean = 0, variance = 0;
                      for (std::int64_t i = 0; i < 5; ++i) mean += x.at(r * 5 + i) / 5;
                      for (std::int64_t i = 0; i < 5; ++i)
                        variance += std::pow(x.at(r * 5 + i) - mean, 2) / 5;
                      for (std::int64_t i = 0; i < 5; ++i)
                        out[uz(r * 5 + i)] =
                            (x.at(r * 5 + i) - mean) / std::sqrt(variance + kEps) * gain.at(i) +
                            shift.at(r % 3);
                    }
                  });
  check_composite("rms_norm", one([](const auto& in) { return rms_norm(in[0], in[1], kEps); }), {x, gain},
                  by_rows(x, [&](const double* in, double* out, std::int64_t n) {
                    double power = 0;
                    for (std::int64_t i = 0; i < n; ++i) power += in[i] * in[i] / static_cast<double>(n);
                    for (std::int64_t i = 0; i < n; ++i)
                      out[i] = in[i] / std::sqrt(power + kEps) * gain.at(i);
                  }));
  check_composite("l2_norm", one([](const auto& in) { return l2_norm(in[0], kEps); }), {x},
                  by_rows(x, [](const double* in, double* out, std::int64_t n) {
                    double power = 0;
                    for (std::int64_t i = 0; i < n; ++i) power += in[i] * in[i];
                    for (std::int64_t i = 0; i < n; ++i) out[i] = in[i] / std::sqrt(power + kEps);
                  }));
  // A constant row, a zero row: no division by zero, also in the derivative.
  for (const double v : {0.0, 3.0}) {
    const Array flat = Array::full(DType::f32, {2, 4}, v);
    const auto g = trace(
        [](Tensor t) {
          return std::vector<Tensor>{layer_norm(t, 1.0, 0.0),
                                     grad(sum(square(layer_norm(t, 1.0, 0.0) + l2_norm(t))), t)};
        },
        flat.spec())(std::vector<Array>{flat});
    for (const double e : g[0].to_vector()) CHECK(std::abs(e) < 1e-3);
    for (const double e : g[1].to_vector()) CHECK(std::isfinite(e));
  }
}

TEST_CASE("cross_entropy of a sure row is as exact as log_softmax, however large the logits") {
  const Array label = Array::of({0}, {1}, DType::i32);
  const TraceFn fn = [](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{cross_entropy(in[0], in[1]), grad(sum(cross_entropy(in[0], in[1])), in[0])};
  };
  struct Row {
    DType dtype;
    double label, other, loss;
  };
  for (const Row& r : {Row{DType::f32, 15, 0, std::log1p(std::exp(-15.0))},
                       {DType::f32, 10, 0, std::log1p(std::exp(-10.0))},
                       {DType::f32, 1e4, 9990, std::log1p(std::exp(-10.0))},
                       {DType::f32, 1e8, 1e8, std::log(2.0)},
                       {DType::f32, -3e4, -3e4, std::log(2.0)},
                       {DType::f32, 0, 80, 80},
                       {DType::f64, 36, 0, std::log1p(std::exp(-36.0))},
                       {DType::f64, 1e16, 1e16, std::log(2.0)}}) {
    CAPTURE(r.label);
    CAPTURE(r.other);
    const Array x = Array::of({r.label, r.other}, {1, 2}, r.dtype);
    const Arrays out = trace(fn, std::vector<Spec>{x.spec(), label.spec()})(Arrays{x, label});
    // 1 + e^-d is rounded to a number near 1.
    const double rounding = r.dtype == DType::f32 ? 6e-8 : 1.2e-16;
    CHECK(std::abs(out[0].item() - r.loss) <= rounding * std::max(2.0, 2 * r.loss));
    const double other = 1 / (1 + std::exp(r.label - r.other));
    CHECK(std::abs(out[1].at(0) + other) <= 2 * rounding);
    CHECK(std::abs(out[1].at(1) - other) <= 2 * rounding);
  }
  // A class that is masked by -infinity has no part in it.
  const Array masked = Array::of({1, -std::numeric_limits<double>::infinity()}, {1, 2});
  const Arrays out = trace(fn, std::vector<Spec>{masked.spec(), label.spec()})(Arrays{masked, label});
  CHECK(out[0].item() == 0);
  CHECK(out[1].to_vector() == std::vector<double>{0, 0});
}

TEST_CASE("composites name themselves and the line where an axis is not there") {
  const auto check = [](const std::string& what, const auto& op) {
    const std::string said = message_of<ShapeError>([&] {
      trace([&](Tensor t) { return op(t); }, Spec{DType::f32, {}});
    });
    CAPTURE(said);
    CHECK(contains(said, "[" + what));
    CHECK(contains(said, "composites_test.cpp"));
  };
  check("cross_entropy", [](Tensor t) { return cross_entropy(t, cast(t, DType::i32)); });
  check("rope", [](Tensor t) { return rope(t, t); });
  check("conv1d", [](Tensor t) { return conv1d(t, t, t); });
  check("causal_conv1d", [](Tensor t) { return causal_conv1d(t, t, t); });
  check("depthwise_conv3x3", [](Tensor t) { return depthwise_conv3x3(t, t, t); });
  check("softmax", [](Tensor t) { return softmax(t, -1); });
  check("logsumexp", [](Tensor t) { return logsumexp(t, -1); });
  check("layer_norm", [](Tensor t) { return layer_norm(t, 1.0, 0.0); });
  check("rms_norm", [](Tensor t) { return rms_norm(t, 1.0); });
  check("l2_norm", [](Tensor t) { return l2_norm(t); });
}

TEST_CASE("select and one_hot choose") {
  const Array mask = Array::of({1, 0, -2, 0.5, 0, 0}, {2, 3}), a = f64({2, 3}, 6), b = f64({3}, 7);
  const TraceFn choose = [](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{select(in[0], in[1] * in[1], in[2])};
  };
  Subject s{.what = "select", .fn = choose, .inputs = {mask, a, b}, .active = {0, 1, 1}, .orders = 2};
  CHECK(join(check_grads(s)) == "");
  const Array y = run(choose, {mask, a, b});
  for (std::int64_t i = 0; i < 6; ++i) CHECK(y.at(i) == (mask.at(i) != 0 ? a.at(i) * a.at(i) : b.at(i % 3)));
  const Array hot = run(one([](const auto& in) { return one_hot(in[0], 3, DType::f32); }),
                        {Array::of({2, 0, 1, 5}, {2, 2}, DType::i32)});
  CHECK(hot.to_vector() == std::vector<double>{0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0});
  CHECK(hot.spec() == Spec{DType::f32, {2, 2, 3}});
}

TEST_CASE(
    "stack sets parts side by side along a new axis, split undoes concat, eye has ones on its diagonal") {
  const Array a = f64({2, 3}, 1), b = f64({2, 3}, 2), c = f64({2, 3}, 3);
  for (int axis = -3; axis < 3; ++axis) {
    const Array y = run(one([&](const auto& in) { return stack(in, axis); }), {a, b, c});
    const std::size_t place = static_cast<std::size_t>(axis < 0 ? axis + 3 : axis);
    Shape expected{2, 3};
    expected.insert(expected.begin() + static_cast<std::ptrdiff_t>(place), 3);
    REQUIRE(y.shape() == expected);
    for (std::int64_t part = 0; part < 3; ++part)
      for (std::int64_t i = 0; i < 2; ++i)
        for (std::int64_t j = 0; j < 3; ++j) {
          std::vector<std::int64_t> at{i, j};
          at.insert(at.begin() + static_cast<std::ptrdiff_t>(place), part);
          const std::int64_t flat = (at[0] * expected[1] + at[1]) * expected[2] + at[2];
          CHECK(y.at(flat) == (part == 0 ? a : part == 1 ? b : c).at(i * 3 + j));
        }
  }
  Subject s{.what = "stack",
            .fn = one([](const auto& in) {
              return square(stack({in[0], in[1], in[0] * in[1]}, 1));
            }),
            .inputs = {a, b},
            .orders = 2};
  CHECK(join(check_grads(s)) == "");
  const Array x = f64({2, 5}, 4);
  s = {.what = "split",
       .fn =
           [](const std::vector<Tensor>& in) {
             const std::vector<Tensor> parts = split(in[0], -1, {2, 0, 3});
             return std::vector<Tensor>{square(parts[0]), parts[1], exp(parts[2])};
           },
       .inputs = {x},
       .orders = 2};
  CHECK(join(check_grads(s)) == "");
  const TraceFn parts = [](const std::vector<Tensor>& in) { return split(in[0], 1, {2, 0, 3}); };
  const Arrays cut = trace(parts, std::vector<Spec>{x.spec()})(Arrays{x});
  CHECK(cut[0].shape() == Shape{2, 2});
  CHECK(cut[1].shape() == Shape{2, 0});
  CHECK(cut[2].shape() == Shape{2, 3});
  const Array joined = run(one([&](const auto& in) { return concat(parts(in), 1); }), {x});
  CHECK(same_bits(std::vector<Array>{joined}, {x}));
  for (const DType type : {DType::f32, DType::f64, DType::i32}) {
    const Array unit = run(one([&](const auto&) { return eye(type, 3); }), {x});
    CHECK(unit.spec() == Spec{type, {3, 3}});
    CHECK(unit.to_vector() == std::vector<double>{1, 0, 0, 0, 1, 0, 0, 0, 1});
  }
  const auto message = [&](const auto& op) {
    return message_of<ShapeError>([&] { trace([&](Tensor t) { return op(t); }, x.spec()); });
  };
  const std::string axis = message([](Tensor t) { return stack({t, t}, 3); });
  CHECK_MESSAGE(
      (contains(axis, "[stack] axis 3 does not exist, rank is 3") && contains(axis, "composites_test.cpp")),
      axis);
  const std::string shapes = message([](Tensor t) { return stack({t, transpose(t)}, 0); });
  CHECK_MESSAGE((contains(shapes, "[stack] parts must have one shape") && contains(shapes, "[5,2]")), shapes);
  const std::string none = message([](Tensor) { return stack({}, 0); });
  CHECK_MESSAGE(contains(none, "[stack] needs at least one part"), none);
  for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{2, 2}, {2, 4}, {-1, 6}, {}}) {
    const std::string sum = message([&](Tensor t) { return split(t, 1, sizes)[0]; });
    CHECK_MESSAGE((contains(sum, "do not add up to axis 1") && contains(sum, "[2,5]")), sum);
  }
}

TEST_CASE("a maximum is that of all elements, and NaN wherever one of them is") {
  const std::int64_t n = 37;  // more than a register, and not a multiple
  for (DType dtype : {DType::f32, DType::f64})
    for (std::int64_t place = 0; place < n; ++place) {
      std::vector<double> row(static_cast<std::size_t>(n), -2.5);
      row[static_cast<std::size_t>(place)] = -1;
      const auto largest = [&](const Shape& shape, int axis) {
        return run(one([&](const auto& in) { return max(in[0], std::vector<int>{axis}); }),
                   {Array::of(row, shape, dtype)});
      };
      CHECK(largest({1, n}, 1).item() == -1);
      CHECK(largest({n, 1}, 0).item() == -1);
      row[static_cast<std::size_t>(place)] = std::nan("");
      CHECK(std::isnan(largest({1, n}, 1).item()));
      CHECK(std::isnan(largest({n, 1}, 0).item()));
    }
}

TEST_CASE("cross_entropy wants one label, of i32, for each row of logits") {
  const auto ask = [](const Spec& labels) {
    trace([](Tensor x, Tensor y) { return cross_entropy(x, y); }, Spec{DType::f64, {2, 3}}, labels);
  };
  constexpr std::string_view kWanted = "labels must be i32[2], one for each row of the logits";
  for (const Spec& labels : {Spec{DType::i32, {2, 1}},
                             {DType::i32, {1}},
                             {DType::i32, {3}},
                             {DType::i32, {}},
                             {DType::i32, {5, 2}}})
    CHECK(testing::contains(testing::message_of<ShapeError>([&] { ask(labels); }), kWanted));
  CHECK(testing::contains(testing::message_of<DTypeError>([&] { ask({DType::f64, {2}}); }), kWanted));
}
