// Matrix products against naive loops.
#include "tests/ops/by_loops.h"
#include "ttt/claim.h"

using namespace nestgrad;
using namespace nestgrad::testing;

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

TEST_CASE("A A' has the bits of A times a copy of A, transposed, and is symmetric") {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const std::int64_t n : {5, 95, 96, 101, 192, 300, 1100})
      for (const std::int64_t k : {1, 33, 300}) {
        CAPTURE(n);
        CAPTURE(k);
        const Array a = uniform({dtype, {2, n, k}}, 1), copy = a.clone();
        const auto product = [&](std::size_t i) {
          return call([&](const auto& in) { return std::vector<Tensor>{matmul(in[0], in[i], {.b = true})}; },
                      {a, copy});
        };
        const Array half = product(0);
        CHECK(half.same_bits(product(1)));
        CHECK(half.same_bits(call(
            [](const auto& in) {
              return std::vector<Tensor>{permute(in[0], {0, 2, 1})};
            },
            {half})));
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
  op.cpu(OpCall{op, specs, attrs, infer(op, specs, attrs)})(in, reinterpret_cast<std::byte*>(out.data()));
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
            worst = worse(worst, std::abs(sum - y[uz(i * n + j)]));
          }
        const std::vector<T> at = flipped(a, m, k), bt = flipped(b, k, n);
        if (m == 1 || n == 1) {  // a vector: its own order of additions
          for (const auto& z : {product(at, b, m, n, k, true, false), product(a, bt, m, n, k, false, true),
                                product(at, bt, m, n, k, true, true)})
            for (std::size_t i = 0; i < z.size(); ++i)
              worst = worse(worst, std::abs(double{z[i]} - double{y[i]}));
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
    return op.kernel_adding_to(OpCall{op, specs, attrs, infer(op, specs, attrs)});
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
          const OpKernel plus = kernel(m, n, k, flags, flags);
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
