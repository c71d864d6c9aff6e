// Linear systems against matmul and against Cramer's rule; what is not read; zeros on the diagonal, NaN.
// norm, where it has no derivative.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "ops/ops.h"
#include "tests/ops/sweep.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Arrays run(const TraceFn& fn, const Arrays& in) {
  std::vector<Spec> specs;
  for (const Array& a : in) specs.push_back(a.spec());
  return trace(fn, specs)(in);
}

Array run_solve(const Array& a, const Array& b, SolveOptions options = {}) {
  return run([&](const auto& in) { return std::vector<Tensor>{solve(in[0], in[1], options)}; }, {a, b})[0];
}

Array run_triangular(const Array& l, const Array& b, TriangularSolveOptions options = {}) {
  return run([&](const auto& in) { return std::vector<Tensor>{triangular_solve(in[0], in[1], options)}; },
             {l, b})[0];
}

// op(a) x - b, relative to b.
double residual(const Array& a, const Array& x, const Array& b, bool transposed) {
  const Array product = run(
      [&](const auto& in) {
        return std::vector<Tensor>{matmul(in[0], in[1], {transposed, false})};
      },
      {a, x})[0];
  return relative_error(product, b, 1);
}

// f(row, column, what stands in x) in place of each entry of the square matrix x.
template <class F>
Array mapped(const Array& x, F f) {
  const std::int64_t n = x.shape().back();
  std::vector<double> values;
  for (std::int64_t i = 0; i < x.size(); ++i) values.push_back(f(i / n % n, i % n, x.at(i)));
  return Array::of(values, x.shape(), x.dtype());
}

// Random, with a diagonal around `diagonal`.
Array well_conditioned(DType dtype, std::int64_t n, double diagonal, std::uint64_t seed) {
  return mapped(uniform({dtype, {n, n}}, seed), [&](std::int64_t i, std::int64_t j, double v) {
    return (i == j ? diagonal : 0) + v / std::sqrt(static_cast<double>(n));
  });
}

bool all_finite(const Array& x) {
  for (const double v : x.to_vector())
    if (!std::isfinite(v)) return false;
  return true;
}

bool all_zero(const Array& x) {
  for (const double v : x.to_vector())
    if (v != 0) return false;
  return true;
}

bool is_nan(const Array& x, std::int64_t i) { return std::isnan(x.at(i)); }

}  // namespace

TEST_CASE("a solution multiplied by its matrix is the right-hand side, at sizes on both sides of a block") {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const std::int64_t n : {1, 2, 7, 32, 33, 70, 130})
      for (const std::int64_t m : {1, 3, 40})
        for (const bool transposed : {false, true}) {
          CAPTURE(n);
          CAPTURE(m);
          const double tolerance = dtype == DType::f32 ? 1e-5 : 1e-13;
          // A small diagonal makes elimination exchange rows.
          const Array a = well_conditioned(dtype, n, n < 3 ? 2 : 0.1, 1), b = uniform({dtype, {n, m}}, 2);
          CHECK(residual(a, run_solve(a, b, {transposed}), b, transposed) < 100 * tolerance);
          for (const bool unit : {false, true}) {
            const Array full = well_conditioned(dtype, n, 1, 3);
            const Array read = mapped(full, [&](std::int64_t i, std::int64_t j, double v) {
              return j > i ? 0 : i == j && unit ? 1 : v;
            });
            const Array poisoned = mapped(full, [&](std::int64_t i, std::int64_t j, double v) {
              return j > i || (i == j && unit) ? kNaN : v;
            });
            const Array x = run_triangular(poisoned, b, {transposed, unit});
            CHECK(residual(read, x, b, transposed) < tolerance);
          }
        }
}

TEST_CASE("leading axes of systems broadcast, members are solved each by itself") {
  const Array b = uniform({DType::f64, {3, 4, 2}}, 4);
  std::vector<double> values;
  for (std::uint64_t k = 0; k < 2; ++k)
    for (const double v : well_conditioned(DType::f64, 4, 1, 5 + k).to_vector()) values.push_back(v);
  const Array a = Array::of(values, {2, 1, 4, 4});
  const Array x = run_solve(a, b), y = run_triangular(a, b, {.transpose = true});
  REQUIRE(x.shape() == Shape{2, 3, 4, 2});
  REQUIRE(y.shape() == x.shape());
  const auto part = [](const Array& from, std::int64_t index, const Shape& shape) {
    const std::int64_t n = numel(shape);
    const std::vector<double> all = from.to_vector();
    return Array::of({all.begin() + index * n, all.begin() + (index + 1) * n}, shape);
  };
  for (std::int64_t i = 0; i < 2; ++i)
    for (std::int64_t j = 0; j < 3; ++j) {
      const Array own_a = part(a, i, {4, 4}), own_b = part(b, j, {4, 2});
      CHECK(part(x, i * 3 + j, {4, 2}).same_bits(run_solve(own_a, own_b)));
      CHECK(part(y, i * 3 + j, {4, 2}).same_bits(run_triangular(own_a, own_b, {.transpose = true})));
    }
  for (const Shape& shape : {Shape{0, 2}, Shape{3, 0}, Shape{0, 3, 2}}) {
    const std::int64_t n = shape[shape.size() - 2];
    const Array none = Array::zeros(DType::f64, shape), matrix = Array::zeros(DType::f64, {n, n});
    CHECK(run_solve(matrix, none).shape() == shape);
    CHECK(run_triangular(matrix, none).shape() == shape);
  }
}

TEST_CASE("gradients of solutions are those of Cramer's rule and of substitution by hand, at orders 1 to 3") {
  const Array a = Array::of({0.8, -0.5, 0.4, 1.2}, {2, 2}), b = uniform({DType::f64, {2, 3}}, 7),
              u = uniform({DType::f64, {2, 3}}, 8);
  // In terms of the entries a, b, c, d of the matrix and the rows e, f of the right-hand side.
  const auto by_hand = [](Tensor matrix, Tensor rhs, auto formula) {
    const auto entry = [&](std::int64_t i, std::int64_t j) {
      return slice(slice(matrix, 0, i, i + 1), 1, j, j + 1);
    };
    const auto [x, y] =
        formula(entry(0, 0), entry(0, 1), entry(1, 0), entry(1, 1), slice(rhs, 0, 0, 1), slice(rhs, 0, 1, 2));
    return concat({x, y}, 0);
  };
  using Rows = std::pair<Tensor, Tensor>;
  struct Pair {
    const char* what;
    std::function<Tensor(Tensor, Tensor)> op, hand;
  };
  const auto cramer = [](Tensor p, Tensor q, Tensor r, Tensor s, Tensor e, Tensor f) {
    const Tensor det = p * s - q * r;
    return Rows{(s * e - q * f) / det, (p * f - r * e) / det};
  };
  const Pair pairs[] = {
      {"A x = b", [](Tensor m, Tensor v) { return solve(m, v); },
       [&](Tensor m, Tensor v) { return by_hand(m, v, cramer); }},
      {"A' x = b", [](Tensor m, Tensor v) { return solve(m, v, {.transpose = true}); },
       [&](Tensor m, Tensor v) { return by_hand(transpose(m), v, cramer); }},
      {"L x = b", [](Tensor m, Tensor v) { return triangular_solve(m, v); },
       [&](Tensor m, Tensor v) {
         return by_hand(m, v, [](Tensor p, Tensor, Tensor r, Tensor s, Tensor e, Tensor f) {
           return Rows{e / p, (f - r * (e / p)) / s};
         });
       }},
      {"L' x = b", [](Tensor m, Tensor v) { return triangular_solve(m, v, {.transpose = true}); },
       [&](Tensor m, Tensor v) {
         return by_hand(m, v, [](Tensor p, Tensor, Tensor r, Tensor s, Tensor e, Tensor f) {
           return Rows{(e - r * (f / s)) / p, f / s};
         });
       }},
      {"L x = b, ones on the diagonal",
       [](Tensor m, Tensor v) { return triangular_solve(m, v, {.unit = true}); },
       [&](Tensor m, Tensor v) {
         return by_hand(m, v, [](Tensor, Tensor, Tensor r, Tensor, Tensor e, Tensor f) {
           return Rows{e, f - r * e};
         });
       }},
  };
  for (const Pair& pair : pairs) {
    CAPTURE(pair.what);
    const auto derivatives = [&](const std::function<Tensor(Tensor, Tensor)>& fn) {
      return run(
          [&](const std::vector<Tensor>& in) {
            std::vector<Tensor> out{fn(in[0], in[1])};
            Tensor d = sum(sin(out[0]) * constant(u));
            for (int order = 1; order <= 3; ++order) {
              const std::vector<Tensor> g = grad(d, in, {.allow_zero = true});
              out.insert(out.end(), g.begin(), g.end());
              d = sum(square(g[0])) + sum(sin(g[1]));
            }
            return out;
          },
          {a, b});
    };
    CHECK(max_error(derivatives(pair.op), derivatives(pair.hand)) < 1e-12);
  }
}

TEST_CASE("derivatives of systems larger than a block are right") {
  const Array a = well_conditioned(DType::f64, 37, 2, 9), b = uniform({DType::f64, {37, 2}}, 10);
  const auto check = [&](const char* what, const TraceFn& fn) {
    const Subject s{.what = what, .fn = fn, .inputs = {a, b}, .active = {}, .tolerance = 10, .orders = 2};
    Failures failures = check_grads(s);
    append(failures, check_products(s));
    INFO(join(failures));
    CHECK(failures.empty());
  };
  check("solve", [](const auto& in) { return std::vector<Tensor>{solve(in[0], in[1])}; });
  for (const bool transposed : {false, true})
    check("triangular_solve", [=](const auto& in) {
      return std::vector<Tensor>{triangular_solve(in[0], in[1], {transposed, false})};
    });
}

TEST_CASE("a zero on the diagonal divides, whether one column is solved or many") {
  const double inf = std::numeric_limits<double>::infinity();
  const Array l = Array::of({0, 0, 1, 2}, {2, 2});
  for (const std::int64_t m : {1, 9}) {
    const Array ones = Array::full(DType::f64, {2, m}, 1), zeros = Array::zeros(DType::f64, {2, m});
    const Array x = run_triangular(l, ones), y = run_triangular(l, zeros);
    for (std::int64_t j = 0; j < m; ++j) {
      CHECK(x.at(j) == inf);
      CHECK(x.at(m + j) == -inf);
      CHECK(is_nan(y, j));
      CHECK(is_nan(y, m + j));
    }
    for (const Array& singular : {Array::zeros(DType::f64, {2, 2}), Array::full(DType::f64, {2, 2}, 3),
                                  Array::of({0, 1, 0, 2}, {2, 2})})
      for (const Array& b : {ones, zeros})
        for (const bool transposed : {false, true}) CHECK(!all_finite(run_solve(singular, b, {transposed})));
  }
  // Divided, not multiplied by a reciprocal, which would overflow.
  const Array tiny = Array::of({1e-310}, {1, 1}), small = Array::of({1e-305}, {1, 1});
  CHECK(run_triangular(tiny, small).item() == small.item() / tiny.item());
}

TEST_CASE("NaN in a system is NaN in its solution, and stays in its column") {
  for (const std::int64_t n : {3, 40})
    for (const std::int64_t m : {1, 2}) {
      const Array a = well_conditioned(DType::f64, n, 2, 11), b = uniform({DType::f64, {n, m}}, 12);
      const Array zeros = Array::zeros(DType::f64, {n, m});
      for (const std::int64_t at : {std::int64_t{0}, n, (n - 1) * n, n * n - 1}) {
        CAPTURE(at);
        const Array bad =
            mapped(a, [&](std::int64_t i, std::int64_t j, double v) { return i * n + j == at ? kNaN : v; });
        for (const Array& rhs : {b, zeros}) {
          CHECK(std::isnan(
              run([](const auto& in) { return std::vector<Tensor>{sum(solve(in[0], in[1]))}; }, {bad, rhs})[0]
                  .item()));
          CHECK(std::isnan(
              run([](const auto& in) { return std::vector<Tensor>{sum(triangular_solve(in[0], in[1]))}; },
                  {bad, rhs})[0]
                  .item()));
        }
      }
      Array bad = b.clone();
      bad.as<double>()[0] = kNaN;
      for (const auto& [x, fine] : {std::pair{run_solve(a, bad), run_solve(a, b)},
                                    std::pair{run_triangular(a, bad), run_triangular(a, b)}}) {
        CHECK(is_nan(x, 0));
        for (std::int64_t i = 1; i < n * m; i += m)
          if (m > 1) CHECK(x.at(i) == fine.at(i));
      }
    }
}

TEST_CASE("norm is the root of the sum of squares over any axes") {
  const Array x = uniform({DType::f64, {2, 3, 4}}, 13);
  for (const std::vector<int>& axes : {std::vector<int>{-1}, {0}, {0, 2}, {0, 1, 2}})
    for (const bool keep : {false, true}) {
      const Arrays y = run(
          [&](const auto& in) {
            return std::vector<Tensor>{norm(in[0], axes, keep), sqrt(sum(square(in[0]), axes, keep))};
          },
          {x});
      CHECK(y[0].same_bits(y[1]));
      const Subject s{.what = "norm",
                      .fn = [&](const auto& in) { return std::vector<Tensor>{norm(in[0], axes, keep)}; },
                      .inputs = {x},
                      .active = {}};
      const Failures failures = check_every_way(s);
      INFO(join(failures));
      CHECK(failures.empty());
    }
}

TEST_CASE("norm and its derivatives are zero at zero, next to slices that are not zero and to NaN") {
  // norm, its gradient, the gradient of a function of that, and so on.
  const auto orders = [](const Array& x, DType dtype) {
    const Array u = uniform({DType::f64, x.shape()}, 14).cast(dtype);
    return run(
        [&](const std::vector<Tensor>& in) {
          std::vector<Tensor> out{norm(in[0], {-1})};
          Tensor d = sum(out[0] * 1.5);
          for (int order = 1; order <= 4; ++order) {
            out.push_back(grad(d, in)[0]);
            d = sum(out.back() * constant(u)) + sum(square(out.back()) * 0.5);
          }
          return out;
        },
        {x.cast(dtype)});
  };
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const double zero : {0.0, -0.0})
      for (const Array& d : orders(Array::full(DType::f64, {2, 3}, zero), dtype)) CHECK(all_zero(d));
    const Array mixed = Array::of({0, 0, 0, 0.5, -1, 2, kNaN, 0, 0, 1, 0, 0}, {4, 3});
    const Array alone = Array::of({0.5, -1, 2, 0.5, -1, 2, 0.5, -1, 2, 0.5, -1, 2}, {4, 3});
    const Arrays got = orders(mixed, dtype), expected = orders(alone, dtype);
    REQUIRE(got.size() == 5);
    for (std::size_t k = 0; k < got.size(); ++k) {
      CAPTURE(k);
      const std::int64_t row = k == 0 ? 1 : 3;
      for (std::int64_t i = 0; i < row; ++i) {
        CHECK(got[k].at(i) == 0);
        CHECK(got[k].at(row + i) == expected[k].at(row + i));  // as if it had no other neighbours
        CHECK(is_nan(got[k], 2 * row + i));
        CHECK(std::isfinite(got[k].at(3 * row + i)));
      }
    }
  }
}
