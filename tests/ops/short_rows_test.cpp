// Ops on rows of a few elements, and sums of long columns, go other ways through memory: with the same bits.
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>

#include "engine/core/random.h"
#include "ops/attrs.h"
#include "ops/kernels.h"
#include "ops/table.h"
#include "tests/ops/sweep.h"
#include "tests/testing.h"
#include "tests/thread_count.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

// -0, infinities and NaN among random numbers, so that each order of additions and comparisons shows.
Array with_specials(const Spec& spec, std::uint64_t seed) {
  Array x = random(Spec{DType::f64, spec.shape}, seed);
  constexpr double kSpecials[] = {-0.0, 0.0, std::numeric_limits<double>::infinity(),
                                  std::numeric_limits<double>::quiet_NaN()};
  for (std::int64_t i = 0; i < x.size(); i += 13)
    x.as<double>()[static_cast<std::size_t>(i)] = kSpecials[i / 13 % 4];
  return x.cast(spec.dtype);
}

}  // namespace

TEST_CASE(
    "an operand that is spread over short rows is as if it had been spread before, for any number of threads") {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const std::int64_t n : {1, 2, 3, 4, 5, 8, 15, 16, 17}) {
      CAPTURE_BOUND(n);
      const Shape full{7, 41, n};
      const std::vector<Shape> shapes{{n}, {41, 1}, {7, 1, n}, {7, 1, 1}, {41, n}, {7, 41, 1}, {1}};
      std::vector<Spec> specs{{dtype, full}};
      for (const Shape& s : shapes) specs.push_back({dtype, s});
      const auto fn = [&](bool before) {
        return trace(
            [&, before](const Tensors& in) {
              Tensors out;
              for (std::size_t i = 1; i < in.size(); ++i) {
                const Tensor a = before ? broadcast_to(in[i], full) : in[i],
                             b = before ? broadcast_to(in[1 + i % shapes.size()], full)
                                        : in[1 + i % shapes.size()];
                out.push_back(in[0] - a);
                out.push_back(a / in[0]);
                out.push_back(select(greater(in[0], 0.0), a, b));
              }
              return out;
            },
            specs);
      };
      const Arrays in = random(specs, 3);
      for (const bool fuse : {false, true}) {
        const Arrays expected = fn(true).plan({.simplify = false, .fuse = fuse}).run(in);
        for (const int threads : {1, 3}) {
          const Threads set(threads);
          CHECK(same_bits(fn(false).plan({.simplify = false, .fuse = fuse}).run(in), expected));
        }
      }
    }
}

TEST_CASE("sums and maxima of many short rows are those of each row alone, to the bit") {
  for (const std::string_view name : {"sum", "max_over"})
    for (const DType dtype : {DType::f32, DType::f64})
      for (std::int64_t n = 1; n <= 17; ++n) {
        CAPTURE(name);
        CAPTURE_BOUND(n);
        const Op& op = *find_op(name);
        const Spec in{dtype, {301, n}}, row{dtype, {n}};
        const Array x = with_specials(in, static_cast<std::uint64_t>(n));
        const Attrs all = ReduceAttrs{{1}}, one = ReduceAttrs{{0}};
        Array together(dtype, {301, 1}), alone(dtype, {301, 1});
        const std::byte* p[] = {x.data()};
        const std::vector<Spec> wide{in}, narrow{row};
        op.cpu({op, wide, all, together.spec()})(p, together.data());
        const RowReduction each = op.row_reduction({op, narrow, one, Spec{dtype, {1}}});
        for (std::size_t r = 0; r < 301; ++r)
          each(x.data() + r * row.bytes(), alone.data() + r * size_of(dtype), n);
        CHECK(together.same_bits(alone));
      }
}

TEST_CASE("sums and maxima of long columns are those of some of them alone, to the bit") {
  for (const DType dtype : {DType::f32, DType::f64, DType::i32})
    for (const std::int64_t rows : {63, 64, 71, 200})
      for (const std::int64_t columns : {64, 65, 511, 600, 1100}) {
        CAPTURE_BOUND(rows);
        CAPTURE_BOUND(columns);
        const Spec spec{dtype, {rows, columns}};
        const Array x =
            dtype == DType::i32 ? uniform(Spec{dtype, spec.shape}, 3, -1e6, 1e6) : with_specials(spec, 9);
        constexpr std::int64_t kSome = 40;
        const Function whole = trace([](Tensor t) { return Tensors{sum(t, {0}), max(t, {0})}; }, spec);
        const Function some = trace(
            [&](Tensor t) {
              Tensors out;
              for (std::int64_t at = 0; at < columns; at += kSome) {
                const Tensor part = slice(t, 1, at, std::min(columns, at + kSome));
                out.push_back(sum(part, {0})), out.push_back(max(part, {0}));
              }
              return out;
            },
            spec);
        const Arrays parts = some(Arrays{x});
        for (const int threads : {1, 3}) {
          const Threads set(threads);
          const Arrays at_once = whole(Arrays{x});
          for (std::size_t i = 0; i < parts.size(); ++i) {
            const auto bytes = parts[i].spec().bytes();
            CHECK(std::memcmp(parts[i].data(), at_once[i % 2].data() + i / 2 * kSome * size_of(dtype),
                              bytes) == 0);
          }
        }
      }
}

namespace {

// The largest of a row as the kernels define it: in lanes of 64 bytes side by side, then lane after lane, then what is left of
// the row. The first of those that are equal; NaN where there is one.
template <class T>
T largest_by_lanes(std::span<const T> row) {
  const auto take = [](T& best, T x) {
    if (std::isnan(x) || x > best) best = x;
  };
  constexpr std::size_t lanes = 64 / sizeof(T);
  const std::size_t whole = row.size() / lanes * lanes;
  T best = row[0];
  for (std::size_t lane = 0; lane < std::min(lanes, whole); ++lane) {
    T most = row[0];
    for (std::size_t i = lane; i < whole; i += lanes) take(most, row[i]);
    take(best, most);
  }
  for (std::size_t i = whole; i < row.size(); ++i) take(best, row[i]);
  return best;
}

// Negative numbers and zeros of both signs, and in every eighth row a NaN.
template <class T>
Array rows_of_zeros(DType dtype, std::int64_t rows, std::int64_t n) {
  Array x(dtype, {rows, n});
  const std::span<T> numbers = x.as<T>();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto kind = random_below(4, 1, 2, i);
    numbers[i] = kind == 0 ? T(0) : kind == 1 ? T(-0.0) : -static_cast<T>(kind);
  }
  for (std::int64_t r = 0; r < rows; r += 8)
    numbers[static_cast<std::size_t>(r * n + r % n)] = std::numeric_limits<T>::quiet_NaN();
  return x;
}

template <class T>
void check_largest(DType dtype) {
  for (const std::int64_t n : {4, 8, 16, 17, 23, 31, 32, 33, 48, 64, 65, 100, 129}) {
    CAPTURE_BOUND(n);
    constexpr std::int64_t kRows = 64;
    const Array x = rows_of_zeros<T>(dtype, kRows, n);
    for (const std::string_view isa : instruction_sets()) {
      CAPTURE(isa);
      set_instruction_set(isa);
      const Function largest = trace([](Tensor t) { return max(t, {1}); }, x.spec());
      const Array found = largest(x);
      for (std::int64_t r = 0; r < kRows; ++r) {
        const T expected = largest_by_lanes<T>(
            x.as<T>().subspan(static_cast<std::size_t>(r * n), static_cast<std::size_t>(n)));
        const T number = found.as<T>()[static_cast<std::size_t>(r)];
        CHECK(std::isnan(number) == std::isnan(expected));
        if (!std::isnan(expected)) CHECK(std::memcmp(&number, &expected, sizeof number) == 0);
      }
    }
  }
}

}  // namespace

TEST_CASE("of zeros of both signs the largest of a row is the same one under every instruction set") {
  const std::string before(kernels().name);
  check_largest<float>(DType::f32);
  check_largest<double>(DType::f64);
  set_instruction_set(before);
}
