// Matrix products, reductions and rearrangements against naive loops.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "autograd/grad.h"
#include "engine/index.h"
#include "ops/attrs.h"
#include "ops/ops.h"
#include "tests/ops/sweep.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

Array call(const TraceFn& fn, const std::vector<Array>& x) {
  std::vector<Spec> specs;
  for (const Array& a : x) specs.push_back(a.spec());
  return trace(fn, specs)(x).at(0);
}
template <class Fn>
Array call1(Fn fn, const Array& x) {
  return trace(fn, x.spec())(x);
}

using Index = std::vector<std::int64_t>;

Index unravel(std::int64_t flat, const Shape& shape) {
  Index out(shape.size());
  for (std::size_t d = shape.size(); d-- > 0; flat /= shape[d]) out[d] = flat % shape[d];
  return out;
}

// The element of a that index means, its last axes aligned with a's; extents of 1 repeat.
double at(const Array& a, const Index& index) {
  std::int64_t flat = 0;
  const std::size_t skip = index.size() - a.shape().size();
  for (std::size_t d = 0; d < a.shape().size(); ++d)
    flat = flat * a.shape()[d] + (a.shape()[d] == 1 ? 0 : index[skip + d]);
  return a.at(flat);
}

// An array whose element at each index is value(index).
template <class Value>
Array filled(DType dtype, const Shape& shape, Value value) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < numel(shape); ++i) values.push_back(value(unravel(i, shape)));
  return Array::of(values, shape, dtype);
}

bool equal_arrays(const Array& a, const Array& b) { return difference(a, b) == 0; }

}  // namespace

TEST_CASE("matmul is the triple loop, for every pair of flags and every broadcast of batches") {
  struct Sizes {
    std::int64_t m, n, k;
  };
  const std::pair<Shape, Shape> batches[] = {{{}, {}},      {{3}, {3}},    {{2}, {}},
                                             {{}, {2}},     {{2, 3}, {3}}, {{2, 1}, {1, 3}},
                                             {{3}, {2, 1}}, {{1, 1}, {}},  {{0}, {1}}};
  for (const Sizes s :
       {Sizes{3, 2, 4}, {1, 5, 3}, {4, 1, 1}, {1, 1, 1}, {9, 17, 33}, {2, 3, 0}, {0, 2, 3}, {3, 0, 2}})
    for (const auto& [ba, bb] : batches)
      for (const bool ta : {false, true})
        for (const bool tb : {false, true})
          for (const DType dtype : {DType::f32, DType::f64}) {
            Shape sa = ba, sb = bb;
            sa.insert(sa.end(), {ta ? s.k : s.m, ta ? s.m : s.k});
            sb.insert(sb.end(), {tb ? s.n : s.k, tb ? s.k : s.n});
            const Array a = uniform({dtype, sa}, 1), b = uniform({dtype, sb}, 2);
            const Array y = call(
                [&](const auto& in) {
                  return std::vector<Tensor>{matmul(in[0], in[1], {ta, tb})};
                },
                {a, b});
            const Array naive = filled(DType::f64, y.shape(), [&](const Index& i) {
              double sum = 0;
              for (std::int64_t k = 0; k < s.k; ++k) {
                Index ia = i, ib = i;
                ia.end()[-2] = ta ? k : i.end()[-2], ia.end()[-1] = ta ? i.end()[-2] : k;
                ib.end()[-2] = tb ? i.end()[-1] : k, ib.end()[-1] = tb ? k : i.end()[-1];
                sum += at(a, ia) * at(b, ib);
              }
              return sum;
            });
            CAPTURE(to_string(a.spec()));
            CAPTURE(to_string(b.spec()));
            CHECK(difference(y.cast(DType::f64), naive) <= (dtype == DType::f32 ? 3e-6 : 1e-14));
          }
}

// Sizes at which the kernel works in blocks of rows, of columns and of k.
TEST_CASE("large products are right too, in every layout") {
  struct Sizes {
    std::int64_t m, n, k;
  };
  for (const Sizes s :
       {Sizes{150, 70, 300}, {3, 200, 600}, {260, 2, 500}, {1, 300, 300}, {300, 1, 300}, {270, 300, 520}})
    for (const bool ta : {false, true})
      for (const bool tb : {false, true}) {
        const Array a = uniform({DType::f64, ta ? Shape{s.k, s.m} : Shape{s.m, s.k}}, 1),
                    b = uniform({DType::f64, tb ? Shape{s.n, s.k} : Shape{s.k, s.n}}, 2);
        const double* pa = a.as<double>().data();
        const double* pb = b.as<double>().data();
        Array naive = Array::zeros(DType::f64, {s.m, s.n});
        double* to = naive.as<double>().data();
        for (std::int64_t i = 0; i < s.m; ++i)
          for (std::int64_t k = 0; k < s.k; ++k)
            for (std::int64_t j = 0; j < s.n; ++j)
              to[i * s.n + j] += pa[ta ? k * s.m + i : i * s.k + k] * pb[tb ? j * s.k + k : k * s.n + j];
        const auto product = [&](const auto& in) {
          return std::vector<Tensor>{matmul(in[0], in[1], {ta, tb})};
        };
        const Array y = call(product, {a, b});
        CAPTURE(s.m);
        CAPTURE(ta);
        CAPTURE(tb);
        CHECK(difference(y, naive) <= 1e-13);
        CHECK(difference(call(product, {a.cast(DType::f32), b.cast(DType::f32)}).cast(DType::f64), naive) <=
              2e-5);
        CHECK(call(product, {a, b}).same_bits(y));
      }
}

namespace {

// C[m,n] = op(A) op(B), by the kernel alone, in memory that ends where the operands do: a sanitizer sees what
// is read beyond.
template <class T>
std::vector<T> product(const std::vector<T>& a, const std::vector<T>& b, std::int64_t m, std::int64_t n,
                       std::int64_t k, bool ta = false, bool tb = false) {
  constexpr DType dtype = sizeof(T) == 4 ? DType::f32 : DType::f64;
  const Spec specs[]{{dtype, ta ? Shape{k, m} : Shape{m, k}}, {dtype, tb ? Shape{n, k} : Shape{k, n}}};
  const Op& op = *find_op("matmul");
  const Attrs attrs = MatmulAttrs{ta, tb};
  std::vector<T> out(uz(m * n), T(7));
  const std::byte* in[]{reinterpret_cast<const std::byte*>(a.data()),
                        reinterpret_cast<const std::byte*>(b.data())};
  op.cpu(Call{op, specs, attrs, infer(op, specs, attrs)})(in, reinterpret_cast<std::byte*>(out.data()));
  return out;
}

template <class T>
std::vector<T> drawn(std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
  const std::vector<double> v = uniform({DType::f64, {rows, columns}}, seed).to_vector();
  return {v.begin(), v.end()};
}

template <class T>
std::vector<T> flipped(const std::vector<T>& x, std::int64_t rows, std::int64_t columns) {
  std::vector<T> out(x.size());
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j) out[uz(j * rows + i)] = x[uz(i * columns + j)];
  return out;
}

// Rows and columns on both sides of every width of a register and of every tile.
const std::int64_t kEdges[]{1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 24, 31, 33, 40};

}  // namespace

TEST_CASE_TEMPLATE("products of all small extents are the triple loop, with the same bits for every layout",
                   T, float, double) {
  double worst = 0;
  int other_bits = 0;
  for (const std::int64_t m : kEdges)
    for (std::int64_t n = 1; n <= 40; ++n)
      for (const std::int64_t k : {1, 2, 3, 4, 7, 8, 9, 16, 17, 21}) {
        const std::vector<T> a = drawn<T>(m, k, 1), b = drawn<T>(k, n, 2), y = product(a, b, m, n, k);
        for (std::int64_t i = 0; i < m; ++i)
          for (std::int64_t j = 0; j < n; ++j) {
            double sum = 0;
            for (std::int64_t p = 0; p < k; ++p) sum += double{a[uz(i * k + p)]} * double{b[uz(p * n + j)]};
            worst = std::max(worst, std::abs(sum - y[uz(i * n + j)]));
          }
        const std::vector<T> at = flipped(a, m, k), bt = flipped(b, k, n);
        if (m == 1 || n == 1) {  // a vector: its own order of additions
          for (const auto& z : {product(at, b, m, n, k, true, false), product(a, bt, m, n, k, false, true),
                                product(at, bt, m, n, k, true, true)})
            for (std::size_t i = 0; i < z.size(); ++i)
              worst = std::max(worst, std::abs(double{z[i]} - double{y[i]}));
          continue;
        }
        other_bits += product(at, b, m, n, k, true, false) != y;
        other_bits += product(a, bt, m, n, k, false, true) != y;
        other_bits += product(at, bt, m, n, k, true, true) != y;
      }
  CHECK(worst <= (sizeof(T) == 4 ? 3e-6 : 1e-14));
  CHECK(other_bits == 0);
}

TEST_CASE_TEMPLATE("a row and a column of a product have the bits that they have among fewer", T, float,
                   double) {
  for (const bool ta : {false, true})
    for (const bool tb : {false, true})
      for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{41, 45, 300}, {230, 300, 270}}) {
        const std::vector<T> a = drawn<T>(m, k, 3), b = drawn<T>(k, n, 4), y = product(a, b, m, n, k);
        CHECK(product(ta ? flipped(a, m, k) : a, tb ? flipped(b, k, n) : b, m, n, k, ta, tb) == y);
        for (const std::int64_t rows : kEdges) {  // the last so many rows, and the first columns
          if (rows == 1) continue;
          const std::vector<T> low(a.end() - rows * k, a.end());
          const std::vector<T> part =
              product(ta ? flipped(low, rows, k) : low, tb ? flipped(b, k, n) : b, rows, n, k, ta, tb);
          CHECK(part == std::vector<T>(y.end() - rows * n, y.end()));
          std::vector<T> left, expected;
          for (std::int64_t p = 0; p < k; ++p)
            for (std::int64_t j = 0; j < rows; ++j) left.push_back(b[uz(p * n + j)]);
          for (std::int64_t i = 0; i < m; ++i)
            for (std::int64_t j = 0; j < rows; ++j) expected.push_back(y[uz(i * n + j)]);
          CHECK(product(ta ? flipped(a, m, k) : a, tb ? flipped(left, k, rows) : left, m, rows, k, ta, tb) ==
                expected);
        }
      }
}

TEST_CASE_TEMPLATE("what is added to a product by its kernel, in place too, has the bits of a sum after it",
                   T, float, double) {
  constexpr DType dtype = sizeof(T) == 4 ? DType::f32 : DType::f64;
  const Op& op = *find_op("matmul");
  const auto kernel = [&](std::int64_t m, std::int64_t n, std::int64_t k, bool ta, bool tb) {
    const Spec specs[]{{dtype, ta ? Shape{k, m} : Shape{m, k}}, {dtype, tb ? Shape{n, k} : Shape{k, n}}};
    const Attrs attrs = MatmulAttrs{ta, tb};
    return op.plus(Call{op, specs, attrs, infer(op, specs, attrs)});
  };
  int wrong = 0;
  for (const std::int64_t m : kEdges)
    for (const std::int64_t n : kEdges)
      for (const std::int64_t k : {1, 7, 16, 256})
        for (const bool flags : {false, true}) {
          const std::vector<T> a = drawn<T>(m, k, 1), b = drawn<T>(k, n, 2), d = drawn<T>(m, n, 3);
          const std::vector<T> at = flags ? flipped(a, m, k) : a, bt = flags ? flipped(b, k, n) : b;
          std::vector<T> expected = product(at, bt, m, n, k, flags, flags), out(expected.size()),
                         in_place = d;
          for (std::size_t i = 0; i < out.size(); ++i) expected[i] = expected[i] + d[i];
          const Kernel plus = kernel(m, n, k, flags, flags);
          const auto run = [&](const std::vector<T>& rest, std::vector<T>& to) {
            const std::byte* in[]{reinterpret_cast<const std::byte*>(at.data()),
                                  reinterpret_cast<const std::byte*>(bt.data()),
                                  reinterpret_cast<const std::byte*>(rest.data())};
            plus(in, reinterpret_cast<std::byte*>(to.data()));
          };
          run(d, out), run(in_place, in_place);
          wrong += out != expected || in_place != expected;
        }
  CHECK(wrong == 0);
  CHECK_FALSE(kernel(3, 3, 257, false, false));  // two blocks of k: other bits
}

TEST_CASE("NaN and infinity in a factor fill its row or its column of a product, and nothing else") {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  for (const auto& sizes : {std::array<std::int64_t, 3>{7, 19, 9}, {1, 10, 3}, {10, 1, 12}, {13, 40, 5}})
    for (const bool ta : {false, true})
      for (const bool tb : {false, true})
        for (const double bad : {nan, inf, -inf})
          for (std::int64_t p = 0; p < sizes[2]; ++p) {
            const auto m = sizes[0], n = sizes[1], k = sizes[2];
            int wrong = 0;
            const auto count = [&](std::vector<double> a, std::vector<double> b, auto hit) {
              const std::vector<double> y =
                  product(ta ? flipped(a, m, k) : a, tb ? flipped(b, k, n) : b, m, n, k, ta, tb);
              for (std::int64_t i = 0; i < m * n; ++i) wrong += std::isnan(y[uz(i)]) != hit(i / n, i % n);
            };
            for (std::int64_t i = 0; i < m; ++i) {  // 0 times infinity is NaN too
              std::vector<double> a(uz(m * k), 1), b(uz(k * n), 0);
              a[uz(i * k + p)] = bad;
              count(a, b, [&](std::int64_t row, std::int64_t) { return row == i; });
            }
            for (std::int64_t j = 0; j < n; ++j) {
              std::vector<double> a(uz(m * k), 0), b(uz(k * n), 1);
              b[uz(p * n + j)] = bad;
              count(a, b, [&](std::int64_t, std::int64_t column) { return column == j; });
            }
            CHECK(wrong == 0);
          }
}

TEST_CASE("a batch member of a product does not depend on the others, to the bit") {
  const Array a = uniform({DType::f32, {5, 7, 11}}, 3), b = uniform({DType::f32, {5, 11, 6}}, 4);
  const auto product = [](const auto& in) { return std::vector<Tensor>{matmul(in[0], in[1])}; };
  const Array y = call(product, {a, b});
  for (std::int64_t i = 0; i < 5; ++i) {
    const auto part = [&](const Array& x) {
      return call1([&](Tensor t) { return slice(t, 0, i, i + 1); }, x);
    };
    CHECK(call(product, {part(a), part(b)}).same_bits(part(y)));
  }
}

TEST_CASE("sum, mean and max over any axes are the naive loops") {
  for (const Shape& shape : {Shape{4}, Shape{3, 5}, Shape{2, 3, 4}, Shape{2, 1, 3, 5}, Shape{1, 1},
                             Shape{300, 2}, Shape{2, 300}, Shape{3, 0, 2}})
    for (unsigned set = 1; set < 1U << shape.size(); ++set)
      for (const DType dtype : {DType::f32, DType::f64, DType::i32}) {
        std::vector<int> axes;
        Shape kept = shape, dropped;
        for (std::size_t d = 0; d < shape.size(); ++d)
          if (set >> d & 1)
            axes.push_back(static_cast<int>(d) - (d % 2 ? static_cast<int>(shape.size()) : 0)), kept[d] = 1;
          else dropped.push_back(shape[d]);
        const Array x = uniform({dtype, shape}, set, -9, 9);
        double count = 1;
        for (std::size_t d = 0; d < shape.size(); ++d)
          if (kept[d] != shape[d]) count *= static_cast<double>(shape[d]);
        const Array total = filled(DType::f64, kept, [&](const Index& i) {
          double s = 0;
          for (std::int64_t e = 0; e < x.size(); ++e) {
            Index j = unravel(e, shape);
            for (std::size_t d = 0; d < j.size(); ++d)
              if (kept[d] == 1) j[d] = 0;
            if (j == i) s += x.at(e);
          }
          return s;
        });
        CAPTURE(to_string(x.spec()));
        CAPTURE(set);
        const double tolerance = dtype == DType::f32 ? 1e-7 : 1e-14;
        const Array y = call1([&](Tensor t) { return sum(t, axes, kKeep); }, x);
        CHECK(y.shape() == kept);
        CHECK(difference(y.cast(DType::f64), total) <= tolerance);
        CHECK(call1([&](Tensor t) { return sum(t, axes); }, x).same_bits(y.reshaped(dropped)));
        if (is_float(dtype) && x.size() > 0) {
          Array average = total.clone();
          for (double& v : average.as<double>()) v /= count;
          // Two roundings: of the sum and of the quotient.
          CHECK(difference(call1([&](Tensor t) { return mean(t, axes, kKeep); }, x).cast(DType::f64),
                           average) <= 2 * tolerance);
        }
        if (x.size() == 0) continue;
        const Array top = filled(dtype, kept, [&](const Index& i) {
          double best = -std::numeric_limits<double>::infinity();
          for (std::int64_t e = 0; e < x.size(); ++e) {
            Index j = unravel(e, shape);
            for (std::size_t d = 0; d < j.size(); ++d)
              if (kept[d] == 1) j[d] = 0;
            if (j == i) best = std::max(best, x.at(e));
          }
          return best;
        });
        CHECK(call1([&](Tensor t) { return max(t, axes, kKeep); }, x).same_bits(top));
      }
}

TEST_CASE("f32 sums lose nothing that a double would keep") {
  const std::int64_t n = 1000000;
  std::vector<double> values(uz(n + 8), 1.0);
  for (std::int64_t i = 0; i < 8; ++i) values[uz(n + i)] = 0.125;
  // Ones alone would stop growing at 2^24 in f32; a small part must survive next to them.
  for (const Shape& shape : {Shape{n + 8}, Shape{n + 8, 1}, Shape{(n + 8) / 8, 8}}) {
    const Array x = Array::of(values, shape, DType::f32);
    CHECK(call1([](Tensor t) { return sum(t); }, x).item() == n + 1);
  }
  const Array column = Array::of(values, {2, (n + 8) / 2}, DType::f32);  // two rows added up, then one row
  CHECK(call1([](Tensor t) { return sum(sum(t, {0})); }, column).item() == n + 1);
  const Array tenth = Array::full(DType::f32, {n}, 0.1);
  CHECK(call1([](Tensor t) { return sum(t); }, tenth).item() ==
        doctest::Approx(n * static_cast<double>(0.1f)).epsilon(6e-8));
  CHECK(call1([](Tensor t) { return mean(t); }, tenth).item() ==
        doctest::Approx(static_cast<double>(0.1f)).epsilon(2e-7));
  const Array running = call1([](Tensor t) { return cumsum(t, 0); }, tenth);
  CHECK(running.at(n - 1) == doctest::Approx(n * static_cast<double>(0.1f)).epsilon(6e-8));
}

TEST_CASE("where maxima are equal the derivative is shared, and NaN wins") {
  const auto slope = [](const std::vector<double>& values) {
    return call1([](Tensor x) { return grad(max(x, {0}, false), {x})[0]; },
                 Array::of(values, {static_cast<std::int64_t>(values.size())}))
        .to_vector();
  };
  CHECK(slope({1, 3, 2}) == std::vector<double>{0, 1, 0});
  CHECK(slope({3, 3, 2}) == std::vector<double>{0.5, 0.5, 0});
  CHECK(slope({2, 2, 2, 2}) == std::vector<double>{0.25, 0.25, 0.25, 0.25});
  for (std::size_t at = 0; at < 3; ++at) {
    std::vector<double> values{1, 5, 2};
    values[at] = std::nan("");
    CHECK(std::isnan(call1([](Tensor x) { return max(x, {0}, false); }, Array::of(values, {3})).item()));
    CHECK(std::isnan(call1(
                         [](Tensor x) {
                           return max(x, {0, 1}, false);
                         },
                         Array::of(values, {3, 1}))
                         .item()));
    CHECK(std::isnan(call1([](Tensor x) { return max(x, {0}, false); },
                           Array::of({values[0], 0, values[1], 0, values[2], 0}, {3, 2}))
                         .at(0)));
  }
  CHECK_THROWS_WITH_AS(call1([](Tensor x) { return max(x, {0}, false); }, Array::zeros(DType::f64, {0, 2})),
                       doctest::Contains("nothing to take the maximum of"), ShapeError);
}

TEST_CASE("axes that do not exist, or are named twice, are refused by op") {
  Graph g;
  const Tensor x = g.input(Spec{DType::f64, {2, 3}});
  CHECK_THROWS_WITH_AS(sum(x, {2}), doctest::Contains("[sum] axis 2 does not exist, rank is 2"), ShapeError);
  CHECK_THROWS_WITH_AS(max(x, {-3}, false), doctest::Contains("[max] axis -3 does not exist"), ShapeError);
  CHECK_THROWS_WITH_AS(sum(x, {1, -1}), doctest::Contains("[sum] an axis is named twice"), ShapeError);
  CHECK_THROWS_WITH_AS(slice(x, 2, 0, 1), doctest::Contains("[slice] axis 2"), ShapeError);
  CHECK_THROWS_WITH_AS(concat({}, 0), doctest::Contains("[concat] needs at least one part"), ShapeError);
  CHECK_THROWS_WITH_AS(transpose(sum(x)), doctest::Contains("[transpose] needs two axes"), ShapeError);
  CHECK_THROWS_WITH_AS(scatter_add(g.input(Spec{DType::i32, {2}}), x, -1), doctest::Contains("[scatter_add]"),
                       ShapeError);
  CHECK_THROWS_WITH_AS(mean(g.input(Spec{DType::i32, {2}})), doctest::Contains("[mean]"), DTypeError);
}

TEST_CASE("gather reads rows, scatter_add adds them up in index order") {
  const Array table = uniform({DType::f32, {4, 2, 3}}, 5),
              index = Array::of({3, 0, 0, 2, 3, 3}, {2, 3}, DType::i32);
  const Array rows =
      call([](const auto& in) { return std::vector<Tensor>{gather(in[0], in[1])}; }, {table, index});
  CHECK(equal_arrays(rows, filled(DType::f32, {2, 3, 2, 3}, [&](const Index& i) {
                       return table.at(static_cast<std::int64_t>(index.at(i[0] * 3 + i[1])) * 6 + i[2] * 3 +
                                       i[3]);
                     })));
  const Array updates = uniform({DType::f32, {2, 3, 2}}, 6);
  const Array y = call([](const auto& in) { return std::vector<Tensor>{scatter_add(in[0], in[1], 5)}; },
                       {index, updates});
  Array naive = Array::zeros(DType::f32, {5, 2});
  for (std::int64_t i = 0; i < 6; ++i)
    for (std::int64_t j = 0; j < 2; ++j)
      naive.as<float>()[uz(static_cast<std::int64_t>(index.at(i)) * 2 + j)] +=
          updates.as<float>()[uz(i * 2 + j)];
  CHECK(y.same_bits(naive));
}

TEST_CASE("an index outside of the table is an error that names op, index and line, in plan and eagerly") {
  for (const double bad : {-1.0, 4.0, 1e9}) {
    const Array table = Array::zeros(DType::f64, {4, 2}), index = Array::of({0, bad}, {2}, DType::i32),
                updates = Array::zeros(DType::f64, {2, 2});
    const std::string text = fmt::format("index {} is outside of the table's 4 rows", static_cast<long>(bad));
    for (const char* part : {"[gather] ", text.c_str(), "structured_test.cpp:"})
      CHECK_THROWS_WITH_AS(
          call([](const auto& in) { return std::vector<Tensor>{gather(in[0], in[1])}; }, {table, index}),
          doctest::Contains(part), ValueError);
    for (const char* part : {"[scatter_add] ", text.c_str(), "structured_test.cpp:"})
      CHECK_THROWS_WITH_AS(
          call([](const auto& in) { return std::vector<Tensor>{scatter_add(in[0], in[1], 4)}; },
               {index, updates}),
          doctest::Contains(part), ValueError);
    Graph g(Mode::eager);
    CHECK_THROWS_WITH_AS(gather(g.input(table), g.input(index)), doctest::Contains(text.c_str()), ValueError);
  }
}
