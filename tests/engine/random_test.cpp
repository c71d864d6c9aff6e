#include "engine/core/random.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/core/random_fill.h"

using namespace nestgrad;

namespace {

using Words = std::array<std::uint32_t, 4>;

// The k-th central moments of values, about `mean`.
double moment(const std::vector<double>& values, double mean, int k) {
  double sum = 0;
  for (const double v : values) sum += std::pow(v - mean, k);
  return sum / static_cast<double>(values.size());
}

// Kolmogorov-Smirnov: sqrt(n) times the largest distance between the empirical distribution and cdf.
// Above 2.2 with probability 1e-4.
template <class Cdf>
double kolmogorov_smirnov(std::vector<double> values, Cdf cdf) {
  std::ranges::sort(values);
  const double n = static_cast<double>(values.size());
  double worst = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double p = cdf(values[i]), rank = static_cast<double>(i);
    worst = std::max({worst, p - rank / n, (rank + 1) / n - p});
  }
  return worst * std::sqrt(n);
}

// The correlation of each element with the one `lag` further on, times sqrt(n): about standard normal.
double correlation(const std::vector<double>& values, double mean, std::size_t lag) {
  double sum = 0;
  for (std::size_t i = 0; i + lag < values.size(); ++i) sum += (values[i] - mean) * (values[i + lag] - mean);
  return sum / moment(values, mean, 2) / std::sqrt(static_cast<double>(values.size()));
}

constexpr std::int64_t kMany = 200000;

}  // namespace

// Known answers of the Random123 distribution (kat_vectors, philox4x32 10).
TEST_CASE("Philox gives the published blocks") {
  CHECK(Philox4x32::block({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(Philox4x32::block({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(Philox4x32::block({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("bits become numbers as documented") {
  // seed pi's key, stream and block pi's counter: the words of the last known answer.
  const std::uint64_t seed = 0x299f31d0a4093822, stream = 0x0370734413198a2e, block = 0x85a308d3243f6a88;
  const Words w{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
  CHECK(random_below(0x80000000, seed, stream, block) == w[0] >> 1);

  const Words zero{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};  // block 0 of seed 0, stream 0
  const auto bits53 = [](std::uint32_t a, std::uint32_t b) {
    return std::ldexp(static_cast<double>((std::uint64_t{a} << 32 | b) >> 32 >> 5 << 26 | b >> 6), -53);
  };
  CHECK(random_uniform({DType::f64, {2}}, 0, 1, 0, 0).to_vector() ==
        std::vector<double>{bits53(zero[0], zero[1]), bits53(zero[2], zero[3])});
  CHECK(random_uniform({DType::f32, {2}}, 0, 1, 0, 0).to_vector() ==
        std::vector<double>{std::ldexp(zero[0] >> 8, -24), std::ldexp(zero[2] >> 8, -24)});
  const double radius = std::sqrt(-2 * std::log(1 - bits53(zero[0], zero[1])));
  const double angle = 2 * 3.14159265358979323846 * bits53(zero[2], zero[3]);
  const Array normal = random_normal({DType::f64, {2}}, 0, 1, 0, 0);
  CHECK(normal.at(0) == doctest::Approx(radius * std::cos(angle)).epsilon(1e-14));
  CHECK(normal.at(1) == doctest::Approx(radius * std::sin(angle)).epsilon(1e-14));
}

TEST_CASE("an element depends on seed, stream and index only, not on size or shape") {
  const auto check = [](auto generate) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      const std::vector<double> all = generate(Spec{dtype, {1001}}, 7, 3).to_vector();
      for (const Shape& shape : {Shape{}, Shape{1}, Shape{2}, Shape{7}, Shape{4, 25}, Shape{0, 3}}) {
        const std::vector<double> some = generate(Spec{dtype, shape}, 7, 3).to_vector();
        CHECK(std::equal(some.begin(), some.end(), all.begin()));
      }
      CHECK(generate(Spec{dtype, {1001}}, 7, 3).to_vector() == all);
      CHECK(generate(Spec{dtype, {1001}}, 8, 3).to_vector() != all);
      CHECK(generate(Spec{dtype, {1001}}, 7, 4).to_vector() != all);
      // All 64 bits of both count.
      CHECK(generate(Spec{dtype, {1001}}, 7 + (std::uint64_t{1} << 32), 3).to_vector() != all);
      CHECK(generate(Spec{dtype, {1001}}, 7, 3 + (std::uint64_t{1} << 63)).to_vector() != all);
    }
  };
  check([](Spec spec, std::uint64_t seed, std::uint64_t stream) {
    return random_uniform(spec, -1, 2, seed, stream);
  });
  check([](Spec spec, std::uint64_t seed, std::uint64_t stream) {
    return random_normal(spec, 1, 2, seed, stream);
  });
}

TEST_CASE("f32 and f64 hold the same random numbers to their precision") {
  const Array wide = random_uniform({DType::f64, {1000}}, 0, 1, 5, 5),
              narrow = random_uniform({DType::f32, {1000}}, 0, 1, 5, 5);
  for (std::int64_t i = 0; i < 1000; ++i)
    CHECK(narrow.at(i) == std::ldexp(std::floor(std::ldexp(wide.at(i), 24)), -24));
  const Array normal = random_normal({DType::f64, {1000}}, 1, 2, 5, 5);
  CHECK(random_normal({DType::f32, {1000}}, 1, 2, 5, 5).same_bits(normal.cast(DType::f32)));
}

TEST_CASE("uniforms are uniform, independent of their neighbours, and inside of their bounds") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const std::vector<double> values = random_uniform({dtype, {kMany}}, -2, 6, 11, 0).to_vector();
    CHECK(std::ranges::all_of(values, [](double v) { return v >= -2 && v < 6; }));
    CHECK(kolmogorov_smirnov(values, [](double v) { return (v + 2) / 8; }) < 2.2);
    CHECK(moment(values, 2, 2) == doctest::Approx(64.0 / 12).epsilon(0.01));
    for (const std::size_t lag : {1u, 2u, 3u, 4u}) CHECK(std::abs(correlation(values, 2, lag)) < 4);
    // Negative control: bounds that are off by 1% of the width are seen.
    CHECK(kolmogorov_smirnov(values, [](double v) { return (v + 2.08) / 8; }) > 2.2);
  }
}

TEST_CASE("rounding never lets a uniform reach its upper bound") {
  const float above = std::nextafter(1e8f, 2e8f);  // two numbers of f32 next to each other
  for (const double v : random_uniform({DType::f32, {1000}}, 1e8, above, 1, 0).to_vector()) CHECK(v == 1e8);
  for (const double v : random_uniform({DType::f64, {4}}, 3, 3, 1, 0).to_vector()) CHECK(v == 3);
}

TEST_CASE("normals have the normal distribution and are independent of their neighbours") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const std::vector<double> values = random_normal({dtype, {kMany}}, 3, 0.5, 12, 1).to_vector();
    const auto cdf = [](double v) { return 0.5 * std::erfc(-(v - 3) / 0.5 / std::sqrt(2.0)); };
    CHECK(kolmogorov_smirnov(values, cdf) < 2.2);
    const double n = static_cast<double>(kMany);
    CHECK(std::abs(moment(values, 3, 1)) < 4 * 0.5 / std::sqrt(n));
    CHECK(moment(values, 3, 2) == doctest::Approx(0.25).epsilon(4 * std::sqrt(2 / n)));
    CHECK(std::abs(moment(values, 3, 3)) / 0.125 < 4 * std::sqrt(15 / n));
    CHECK(moment(values, 3, 4) / 0.0625 == doctest::Approx(3).epsilon(4 * std::sqrt(96 / n) / 3));
    for (const std::size_t lag : {1u, 2u, 3u, 4u}) CHECK(std::abs(correlation(values, 3, lag)) < 4);
    // Beyond three standard deviations: 0.27%.
    const auto tail = std::ranges::count_if(values, [](double v) { return std::abs(v - 3) > 1.5; });
    CHECK(std::abs(static_cast<double>(tail) - 0.0026998 * n) < 4 * std::sqrt(0.0026998 * n));
  }
}

TEST_CASE("the logarithm, cosine and sine of normals are those of the C library, to the last units") {
  const auto units = [](double x, double exact) {
    return std::abs(x - exact) / (std::nextafter(std::abs(exact), 1e300) - std::abs(exact));
  };
  double worst_log = 0, worst_turn = 0;
  const auto try_log = [&](double x) { worst_log = std::max(worst_log, units(log_of(x), std::log(x))); };
  const auto try_turn = [&](double v) {
    double cosine = 0, sine = 0;
    cos_sin_of_turns(v, cosine, sine);
    // In long double, from the nearest quarter turn: a whole angle is too coarse where cos or sin is near 0.
    const int quarters = static_cast<int>(std::lround(4 * v));
    const long double angle = 2 * std::numbers::pi_v<long double> * (v - 0.25L * quarters);
    long double c = std::cos(angle), s = std::sin(angle);
    for (int i = 0; i < quarters; ++i) c = std::exchange(s, c) * -1;
    worst_turn =
        std::max({worst_turn, units(cosine, static_cast<double>(c)), units(sine, static_cast<double>(s))});
  };
  for (const double u : random_uniform({DType::f64, {kMany}}, 0, 1, 3, 1).to_vector()) {
    try_log(1 - u);
    try_log(std::ldexp(1 - u, -30));
    try_turn(u);
  }
  for (int k = 1; k <= 53; ++k) try_log(std::ldexp(1.0, -k)), try_log(1 - std::ldexp(1.0, -k));
  for (int eighth = 0; eighth < 8; ++eighth)
    for (const double off : {-0x1p-53, 0x1p-53}) try_turn(std::abs(eighth / 8.0 + off));
  CHECK(worst_log < 3);
  CHECK(worst_turn < 3);
  CHECK(log_of(1) == 0);
  // Exact where it can be.
  for (const auto& [v, c, s] :
       {std::tuple{0.0, 1.0, 0.0}, {0.25, 0.0, 1.0}, {0.5, -1.0, 0.0}, {0.75, 0.0, -1.0}}) {
    double cosine = 0, sine = 0;
    cos_sin_of_turns(v, cosine, sine);
    CHECK(cosine == c);
    CHECK(sine == s);
  }
}

TEST_CASE("streams and seeds next to each other are uncorrelated") {
  const auto values = [](std::uint64_t seed, std::uint64_t stream) {
    return random_normal({DType::f64, {kMany}}, 0, 1, seed, stream).to_vector();
  };
  const std::vector<double> base = values(0, 0);
  for (const auto& other : {values(0, 1), values(1, 0), values(1, 1), values(0, std::uint64_t{1} << 32)}) {
    const double product = std::inner_product(base.begin(), base.end(), other.begin(), 0.0);
    CHECK(std::abs(product) < 4 * std::sqrt(static_cast<double>(kMany)));
  }
}

TEST_CASE("random_below is unbiased and in range") {
  // Chi-square over three groups of equal size: 2 degrees of freedom, above 18.4 with probability 1e-4.
  const auto chi_square = [](auto group_of_draw) {
    std::array<double, 3> counts{};
    for (std::uint64_t i = 0; i < kMany; ++i) ++counts[group_of_draw(i)];
    double sum = 0;
    for (const double c : counts) sum += (c - kMany / 3.0) * (c - kMany / 3.0) / (kMany / 3.0);
    return sum;
  };
  for (const std::uint32_t n : {3u, 300u, 3u << 30, 0x80000001u, 0xffffffffu}) {  // all divisible by 3
    const auto draw = [&](std::uint64_t i) {
      const std::uint64_t value = random_below(n, 4, 9, i);
      REQUIRE(value < n);
      return value;
    };
    CHECK(chi_square([&](std::uint64_t i) { return draw(i) * 3 / n; }) < 18.4);
    CHECK(chi_square([&](std::uint64_t i) { return draw(i) % 3; }) < 18.4);
  }
  // Negative controls, n = 3 2^30: the remainder of a word favours low numbers, the scaled word multiples
  // of 3.
  const auto word = [](std::uint64_t i) {
    return std::uint64_t{Philox4x32::block({static_cast<std::uint32_t>(i), 0, 9, 0}, {4, 0})[0]};
  };
  CHECK(chi_square([&](std::uint64_t i) { return word(i) % (3u << 30) >> 30; }) > 18.4);
  CHECK(chi_square([&](std::uint64_t i) { return (word(i) * (3u << 30) >> 32) % 3; }) > 18.4);

  CHECK(random_below(1, 4, 9, 0) == 0);
  std::set<std::uint32_t> seen;
  for (std::uint64_t i = 0; i < 100; ++i) seen.insert(random_below(6, 4, 9, i));
  CHECK(seen == std::set<std::uint32_t>{0, 1, 2, 3, 4, 5});
}

TEST_CASE("requests for random numbers that make no sense are refused") {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const Spec f32{DType::f32, {2}}, f64{DType::f64, {2}};
  CHECK_THROWS_AS(random_uniform({DType::i32, {2}}, 0, 1, 0, 0), DTypeError);
  CHECK_THROWS_AS(random_normal({DType::i32, {2}}, 0, 1, 0, 0), DTypeError);
  CHECK_THROWS_AS(random_uniform({DType::f64, {-1}}, 0, 1, 0, 0), ShapeError);
  for (const auto& [lo, hi] :
       {std::pair{1.0, 0.0}, {0.0, infinity}, {nan, 1.0}, {0.0, nan}, {-1.7e308, 1.7e308}})
    CHECK_THROWS_AS(random_uniform(f64, lo, hi, 0, 0), ValueError);
  CHECK_THROWS_AS(random_uniform(f32, -3e38, 3e38, 0, 0), ValueError);
  for (const auto& [mean, stddev] :
       {std::pair{0.0, -1.0}, {nan, 1.0}, {0.0, nan}, {infinity, 1.0}, {0.0, infinity}})
    CHECK_THROWS_AS(random_normal(f64, mean, stddev, 0, 0), ValueError);
  CHECK_THROWS_AS(random_normal(f32, 0, 1e38, 0, 0), ValueError);
  CHECK_THROWS_AS(random_below(0, 0, 0, 0), ValueError);
}
