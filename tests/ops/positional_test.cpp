// Composites that know about positions: rotary embedding and convolutions.
#include <doctest/doctest.h>

#include <cmath>

#include "ops/ops.h"
#include "tests/ops/sweep.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

Array run(const TraceFn& fn, const std::vector<Array>& x) {
  std::vector<Spec> specs;
  for (const Array& a : x) specs.push_back(a.spec());
  return trace(fn, specs)(x).at(0);
}

Array drawn(const Shape& shape, std::uint64_t seed) { return uniform({DType::f64, shape}, seed, -1.5, 1.5); }

TraceFn rotate(double theta) {
  return [=](const std::vector<Tensor>& in) { return std::vector<Tensor>{rope(in[0], in[1], theta)}; };
}
const TraceFn kConvolve = [](const std::vector<Tensor>& in) {
  return std::vector<Tensor>{causal_conv1d(in[0], in[1], in.size() > 2 ? in[2] : Tensor())};
};
const TraceFn kConvolve2d = [](const std::vector<Tensor>& in) {
  return std::vector<Tensor>{depthwise_conv3x3(in[0], in[1], in.size() > 2 ? in[2] : Tensor())};
};

void check_derivatives(std::string what, const TraceFn& fn, const std::vector<Array>& x) {
  const Subject s{.what = std::move(what), .fn = fn, .inputs = x, .active = {}, .orders = 2};
  Failures failures = check_grads(s);
  append(failures, check_products(s));
  append(failures, check_f32_grads(s));
  INFO(join(failures));
  CHECK(failures.empty());
}

}  // namespace

TEST_CASE("rope turns each pair by position times its frequency") {
  const Array x = drawn({2, 3, 5, 6}, 1), positions = Array::of({0, 1, 2, 10, 2.5}, {5});
  const Array y = run(rotate(100), {x, positions});
  for (std::int64_t i = 0; i < x.size(); i += 2) {
    const double angle = positions.at(i / 6 % 5) * std::pow(100, -static_cast<double>(i % 6) / 6);
    CHECK(y.at(i) ==
          doctest::Approx(x.at(i) * std::cos(angle) - x.at(i + 1) * std::sin(angle)).epsilon(1e-13));
    CHECK(y.at(i + 1) ==
          doctest::Approx(x.at(i) * std::sin(angle) + x.at(i + 1) * std::cos(angle)).epsilon(1e-13));
  }
  check_derivatives("rope", rotate(100), {x, positions});
  Graph g;
  CHECK_THROWS_WITH_AS(rope(g.input(Spec{DType::f64, {4, 3}}), g.input(Spec{DType::f64, {4}})),
                       doctest::Contains("[rope] the last axis must be even"), ShapeError);
}

TEST_CASE("rope of one token without an axis for it has none either") {
  const Array x = random(f64({6}), 1), at = Array::of({3}, {1});
  const Array alone = trace([](Tensor t, Tensor p) { return rope(t, p); }, x.spec(), at.spec())(x, at);
  const Array row =
      trace([](Tensor t, Tensor p) { return rope(t, p); }, f64({1, 6}), at.spec())(x.reshaped({1, 6}), at);
  CHECK(alone.shape() == Shape{6});
  CHECK(alone.to_vector() == row.to_vector());
}

TEST_CASE("rope preserves norms, and products depend on relative positions only") {
  const std::int64_t dim = 8;
  const Array q = drawn({1, dim}, 2), k = drawn({1, dim}, 3);
  const auto turned = [&](const Array& x, double position) {
    return run(rotate(10000), {x, Array::of({position}, {1})});
  };
  const auto dot = [&](const Array& a, const Array& b) {
    double s = 0;
    for (std::int64_t i = 0; i < dim; ++i) s += a.at(i) * b.at(i);
    return s;
  };
  CHECK(difference(turned(q, 0), q) == 0);
  for (const double p : {1.0, 7.0, 1000.0})
    CHECK(dot(turned(q, p), turned(q, p)) == doctest::Approx(dot(q, q)).epsilon(1e-13));
  for (const double distance : {0.0, 1.0, 5.0, -3.0}) {
    const double here = dot(turned(q, distance), turned(k, 0));
    for (const double shift : {1.0, 12.0, 400.0})
      CHECK(dot(turned(q, distance + shift), turned(k, shift)) == doctest::Approx(here).epsilon(1e-11));
  }
  CHECK(std::abs(dot(turned(q, 1), turned(k, 0)) - dot(q, k)) > 1e-3);
}

TEST_CASE("a convolution has at least one tap, and rows for them") {
  trace(
      [](const std::vector<Tensor>& in) {
        CHECK(contains(message_of<ShapeError>([&] { conv1d(in[0], in[1], Tensor()); }), "has no taps"));
        CHECK(contains(message_of<ShapeError>([&] { causal_conv1d(in[0], in[1], in[2]); }), "has no taps"));
        CHECK(contains(message_of<ShapeError>([&] {
                         conv1d(in[0], zeros(DType::f64, {3, 1, 6}), Tensor());
                       }),
                       "x has 4 rows, fewer than the 6 taps need"));
        return in;
      },
      {f64({1, 4, 3}), f64({3, 1, 0}), f64({3})});
}

TEST_CASE("causal_conv1d is the naive loop, and never looks ahead") {
  const std::int64_t batch = 2, time = 6, dim = 3;
  for (const std::int64_t taps : {1, 2, 4, 8}) {
    CAPTURE(taps);
    const Array x = drawn({batch, time, dim}, 4), w = drawn({dim, 1, taps}, 5), bias = drawn({dim}, 6);
    const Array y = run(kConvolve, {x, w, bias}), unbiased = run(kConvolve, {x, w});
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t t = 0; t < time; ++t)
        for (std::int64_t d = 0; d < dim; ++d) {
          double s = 0;  // the last tap meets the present
          for (std::int64_t j = 0; j < taps; ++j)
            if (const std::int64_t at = t - (taps - 1) + j; at >= 0)
              s += w.at(d * taps + j) * x.at((b * time + at) * dim + d);
          const std::int64_t i = (b * time + t) * dim + d;
          CHECK(unbiased.at(i) == doctest::Approx(s).epsilon(1e-13));
          CHECK(y.at(i) == doctest::Approx(s + bias.at(d)).epsilon(1e-13));
        }
    if (taps <= time) {  // without the padding: what has no past is left out
      const Array valid =
          run([](const std::vector<Tensor>& in) { return std::vector<Tensor>{conv1d(in[0], in[1], in[2])}; },
              {x, w, bias});
      CHECK(valid.same_bits(run(
          [&](const std::vector<Tensor>& in) { return std::vector<Tensor>{slice(in[0], 1, taps - 1, time)}; },
          {y})));
    }
    // A change at time t moves nothing before t.
    for (std::int64_t t = 0; t < time; ++t) {
      Array later = x.clone();
      for (std::int64_t d = 0; d < dim; ++d) later.as<double>()[static_cast<std::size_t>(t * dim + d)] += 1;
      const Array z = run(kConvolve, {later, w, bias});
      for (std::int64_t i = 0; i < y.size(); ++i)
        if (i / dim < t || i / dim >= time) CHECK(z.at(i) == y.at(i));
      CHECK(z.at(t * dim) != y.at(t * dim));
    }
  }
  check_derivatives("causal_conv1d", kConvolve,
                    {drawn({batch, time, dim}, 4), drawn({dim, 1, 4}, 5), drawn({dim}, 6)});
  CHECK_THROWS_WITH_AS(run(kConvolve, {drawn({2, 6, 3}, 1), drawn({3, 4}, 1)}),
                       doctest::Contains("[causal_conv1d] weight must be [3,1,4]"), ShapeError);
  CHECK_THROWS_WITH_AS(run(kConvolve, {drawn({6, 3}, 1), drawn({3, 1, 4}, 1)}),
                       doctest::Contains("[causal_conv1d] x must be [batch, time, dim]"), ShapeError);
}

TEST_CASE("depthwise_conv3x3 is the naive loop with zeros around") {
  const std::int64_t height = 4, width = 3, dim = 2;
  const Array x = drawn({2, height, width, dim}, 7), w = drawn({dim, 1, 3, 3}, 8), bias = drawn({dim}, 9);
  const Array y = run(kConvolve2d, {x, w, bias}), unbiased = run(kConvolve2d, {x, w});
  for (std::int64_t i = 0; i < y.size(); ++i) {
    const std::int64_t d = i % dim, column = i / dim % width, row = i / dim / width % height,
                       image = i / dim / width / height;
    double s = 0;
    for (std::int64_t r = 0; r < 3; ++r)
      for (std::int64_t c = 0; c < 3; ++c) {
        const std::int64_t from_row = row + r - 1, from_column = column + c - 1;
        if (from_row < 0 || from_row >= height || from_column < 0 || from_column >= width) continue;
        s += w.at(d * 9 + r * 3 + c) * x.at(((image * height + from_row) * width + from_column) * dim + d);
      }
    CHECK(unbiased.at(i) == doctest::Approx(s).epsilon(1e-13));
    CHECK(y.at(i) == doctest::Approx(s + bias.at(d)).epsilon(1e-13));
  }
  check_derivatives("depthwise_conv3x3", kConvolve2d, {x, w, bias});
  CHECK_THROWS_WITH_AS(run(kConvolve2d, {x, drawn({2, 1, 9}, 1)}),
                       doctest::Contains("[depthwise_conv3x3] weight must be [2,1,3,3]"), ShapeError);
}
