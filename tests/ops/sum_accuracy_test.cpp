// Sums of f32 against exact ones: the error stays below the bound of ops/numerics/lane_sum.h whatever the
// length. The table of docs/numerics.md is what the first test prints.
#include <cmath>
#include <limits>
#include <span>

#include "ops/kernels.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

constexpr double kUnit = 0x1p-24;  // of the bound: 7 units of the sum of magnitudes, and 1 of the sum

enum class Terms { positive, mixed, cancelling };
Array terms(Terms kind, std::int64_t n, std::uint64_t seed) {
  Array x = random(f32({n}), seed, kind == Terms::positive ? 0 : -1);
  if (kind == Terms::cancelling)  // pairs of a large number and nearly its opposite
    for (std::int64_t i = 0; i + 1 < n; i += 2) {
      float* const pair = x.as<float>().data() + i;
      pair[0] *= 1e6F, pair[1] = -pair[0] + pair[1];
    }
  return x;
}

struct Exact {
  long double sum = 0, magnitudes = 0;
};
// To the precision of a long double, 2^-64: exact for the purpose.
Exact exact(const Array& x) {
  Exact out;
  for (const float v : x.as<float>()) out.sum += v, out.magnitudes += std::abs(v);
  return out;
}

// In units of 2^-24 sum |x|.
double error(float got, const Exact& wanted) {
  return static_cast<double>(std::abs(got - wanted.sum) / wanted.magnitudes) / kUnit;
}

float sum_along(const Array& x) {
  return trace([](Tensor t) { return sum(t); }, x.spec())(x).as<float>()[0];
}
// The order that lane_sum.h gives, one number at a time. runs: where rows of n elements begin.
float in_lanes(const std::span<const float> x, std::int64_t runs, std::int64_t n, std::int64_t step) {
  float lane[16] = {};
  double part[8] = {};
  const auto widen = [&] {
    for (int k = 0; k < 16; ++k) part[k % 8] += static_cast<double>(lane[k]), lane[k] = 0;
  };
  int added = 0;
  for (std::int64_t r = 0; r < runs; ++r)
    for (std::int64_t i = 0; i < n; ++i) {
      lane[i % 16] += x[static_cast<std::size_t>(r * step + i)];
      if (i % 16 == 15 || i + 1 == n)
        if (++added % 8 == 0) widen();
    }
  widen();
  return static_cast<float>(((part[0] + part[4]) + (part[1] + part[5])) +
                            ((part[2] + part[6]) + (part[3] + part[7])));
}
// The same numbers as the first of two columns.
float sum_across(const Array& x) {
  Array columns(DType::f32, {x.size(), 2});
  const auto from = x.as<float>();
  const auto to = columns.as<float>();
  for (std::size_t i = 0; i < from.size(); ++i) to[2 * i] = from[i], to[2 * i + 1] = 1;
  return trace([](Tensor t) { return sum(t, {0}); }, columns.spec())(columns).as<float>()[0];
}

// Added up one after the other, as a first program would.
float one_after_the_other(const Array& x) {
  float sum = 0;
  for (const float v : x.as<float>()) sum += v;
  return sum;
}

}  // namespace

TEST_CASE("a sum of f32 is as exact as its bound says, along rows and across them") {
  std::string table =
      "| terms | length | along rows | across rows | one after the other |\n|---|---:|---:|---:|---:|\n";
  for (const Terms kind : {Terms::positive, Terms::mixed, Terms::cancelling})
    for (const std::int64_t n : {1, 8, 16, 100, 129, 1000, 100'000, 1'000'000}) {
      double along = 0, across = 0, naive = 0;
      for (std::uint64_t seed = 1; seed <= (n < 10'000 ? 50U : 3U); ++seed) {
        const Array x = terms(kind, n, seed);
        const Exact wanted = exact(x);
        const double in_double = static_cast<double>(n) * 0x1p-32, second_order = 1e-5;
        const double bound =
            7 + static_cast<double>(std::abs(wanted.sum) / wanted.magnitudes) + in_double + second_order;
        const double row = error(sum_along(x), wanted), column = error(sum_across(x), wanted);
        CHECK(row <= bound);
        CHECK(column <= bound);
        along = std::max(along, row), across = std::max(across, column);
        naive = std::max(naive, error(one_after_the_other(x), wanted));
      }
      constexpr const char* kNames[] = {"positive", "of both signs", "nearly cancelling"};
      table += fmt::format("| {} | {} | {:.2f} | {:.2f} | {:.2f} |\n", kNames[static_cast<int>(kind)], n,
                           along, across, naive);
    }
  MESSAGE("worst errors, in units of 2^-24 (|x_0| + |x_1| + ..); the bound is 8\n" << table);
}

TEST_CASE("a sum of f32 adds up in the order of its description, whatever is left of a row") {
  const DeviceScope on(Device::cpu());
  const std::string before(kernels().name);
  for (const std::string_view isa : instruction_sets()) {
    set_instruction_set(isa);
    CAPTURE(isa);
    for (std::int64_t n = 1; n < 300; n += n < 70 ? 1 : 13) {
      const Array x = random(f32({n}), 5);
      CHECK(sum_along(x) == in_lanes(x.as<float>(), 1, n, n));
      const Array runs = random(f32({9, 2, n}), 6);  // the first of each two rows
      const Array both = trace([](Tensor t) { return sum(t, {0, 2}); }, runs.spec())(runs);
      CHECK(both.as<float>()[0] == in_lanes(runs.as<float>(), 9, n, 2 * n));
    }
  }
  set_instruction_set(before);
}

TEST_CASE("columns of a sum across rows are sums of their own, whatever the width") {
  const Function of_two = trace([](Tensor t) { return sum(t, {0}); }, f32({100, 2}));
  for (const std::int64_t columns : {2, 5, 8, 37, 64, 300}) {
    const Array x = random(f32({100, columns}), 3);
    const Array all = trace([](Tensor t) { return sum(t, {0}); }, x.spec())(x);
    for (std::int64_t c = 0; c < columns; ++c) {
      Array column(DType::f32, {100, 2});  // and another, or it is a row
      for (std::int64_t r = 0; r < 100; ++r)
        column.as<float>()[static_cast<std::size_t>(2 * r)] = static_cast<float>(x.at(r * columns + c));
      CHECK(of_two(column).at(0) == all.at(c));
    }
  }
}

TEST_CASE("infinities and NaN go through a sum; a part that no f32 holds is infinite") {
  const DeviceScope on(Device::cpu());
  constexpr float kMost = std::numeric_limits<float>::max(), kInf = std::numeric_limits<float>::infinity();
  Array x = Array::full(DType::f32, {200}, 1);
  const auto total = [&] { return sum_along(x); };
  x.as<float>()[77] = kInf;
  CHECK(total() == kInf);
  x.as<float>()[90] = -kInf;
  CHECK(std::isnan(total()));
  x = Array::zeros(DType::f32, {200});
  x.as<float>()[0] = kMost, x.as<float>()[1] = kMost, x.as<float>()[2] = -kMost;  // lanes of their own
  CHECK(total() == kMost);
  x.as<float>()[16] = kMost, x.as<float>()[32] = -kMost;  // one lane
  CHECK(total() == kInf);
  x.as<float>()[18] = -kMost;  // and another with the opposite sign
  CHECK(std::isnan(total()));
}
