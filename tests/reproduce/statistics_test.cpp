// The promise: error bars and p-values are those of the textbooks, hold what their level says when tables are
// drawn many times, and are the same bits everywhere; what cannot be answered is refused.
#include "reproduce/statistics.h"

#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;
using namespace nestgrad::reproduce;

namespace {

using Numbers = std::vector<double>;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Two numbers, compared by their relative difference.
struct Near {
  double value, most;
  friend bool operator==(double found, const Near& near) {
    return std::abs(found - near.value) <= near.most * std::abs(near.value);
  }
  friend doctest::String toString(const Near& near) {
    return fmt::format("{} within {}", near.value, near.most).c_str();
  }
};
Near near(double value, double relative = 1e-13) { return {value, relative}; }

// Hours of sleep that ten patients gained with each of two drugs (Student, "The Probable Error of a Mean",
// 1908, as in R's data set `sleep`).
const Numbers& first_drug() {
  static const Numbers hours = {0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0};
  return hours;
}
const Numbers& second_drug() {
  static const Numbers hours = {1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4};
  return hours;
}

Numbers normal(std::size_t n, std::uint64_t seed, double mean = 0) {
  const Array drawn = random_normal(f64({static_cast<std::int64_t>(n)}), mean, 1, seed, 0);
  const auto values = drawn.as<double>();
  return {values.begin(), values.end()};
}

// Tables of rows, each a paired comparison of two ways of which one is better by an effect of its own. Pairs
// share a number that is larger than what is looked for.
struct Table {
  std::vector<Numbers> a, b;
  Table(const Numbers& effects, std::size_t pairs, std::uint64_t seed) {
    for (std::size_t row = 0; row < effects.size(); ++row) {
      const std::uint64_t own = 1000 * seed + 3 * row;
      const Numbers shared = normal(pairs, own, 10);
      a.push_back(normal(pairs, own + 1, effects[row])), b.push_back(normal(pairs, own + 2));
      for (std::size_t i = 0; i < pairs; ++i) a[row][i] += 5 * shared[i], b[row][i] += 5 * shared[i];
    }
  }
  Numbers p() const {
    Numbers out;
    for (std::size_t row = 0; row < a.size(); ++row) out.push_back(paired_difference(a[row], b[row]).p);
    return out;
  }
};

constexpr int kTables = 1000;

// How often something happened in kTables independent trials, if its probability is p: within 3.3 standard
// deviations, which one number in a thousand misses (and these, of fixed seeds, do not).
void check_share(int times, double p) {
  const double expected = kTables * p, deviation = std::sqrt(kTables * p * (1 - p));
  CHECK(times >= expected - 3.3 * deviation);
  CHECK(times <= expected + 3.3 * deviation);
}

double mean_of_chosen(const Numbers& values, std::span<const std::size_t> chosen) {
  double sum = 0;
  for (const std::size_t i : chosen) sum += values[i];
  return sum / static_cast<double>(chosen.size());
}

}  // namespace

TEST_CASE("quantiles of Student's t are those of the published tables") {
  struct Row {
    double degrees, q95, q975, q995;
  };
  for (const Row& row :
       {Row{1, 6.314, 12.706, 63.657}, Row{2, 2.920, 4.303, 9.925}, Row{4, 2.132, 2.776, 4.604},
        Row{9, 1.833, 2.262, 3.250}, Row{30, 1.697, 2.042, 2.750}, Row{120, 1.658, 1.980, 2.617},
        Row{1e9, 1.645, 1.960, 2.576}}) {
    CAPTURE(row.degrees);
    CHECK(std::abs(student_quantile(0.95, row.degrees) - row.q95) <= 0.00051);
    CHECK(std::abs(student_quantile(0.975, row.degrees) - row.q975) <= 0.00051);
    CHECK(std::abs(student_quantile(0.995, row.degrees) - row.q995) <= 0.00051);
  }
  // The normal distribution's, which 1e15 degrees reach to rounding.
  CHECK(student_quantile(0.975, 1e15) == near(1.9599639845400545));
}

TEST_CASE("Student's t agrees with closed forms") {
  for (const double t :
       {-1e6, -40.0, -3.0, -1.01, -0.99, -1e-3, -1e-200, 0.0, 1e-9, 0.5, 1.0, 1.7, 2.5, 100.0}) {
    CAPTURE(t);
    const double tail1 = std::atan2(1, std::abs(t)) / std::numbers::pi;
    const double root2 = std::sqrt(2 + t * t), tail2 = 1 / (root2 * (root2 + std::abs(t)));
    CHECK(student_cdf(t, 1) == near(t < 0 ? tail1 : 1 - tail1));
    CHECK(student_cdf(t, 2) == near(t < 0 ? tail2 : 1 - tail2));
  }
  for (const double p : {1e-12, 0.001, 0.025, 0.3, 0.5, 0.501, 0.975}) {
    CAPTURE(p);
    const double quantile1 = p == 0.5 ? 0 : -1 / std::tan(std::numbers::pi * p);
    CHECK(student_quantile(p, 1) == near(quantile1, 1e-12));
    CHECK(student_quantile(p, 2) == near((2 * p - 1) / std::sqrt(2 * p * (1 - p)), 1e-12));
  }
  CHECK(student_cdf(-kInfinity, 7) == 0);
  CHECK(student_cdf(kInfinity, 7) == 1);
  CHECK(student_cdf(-1e200, 1) == near(1e-200 / std::numbers::pi));  // the square of t is no number
}

TEST_CASE("Student's t agrees with the incomplete beta function in 40 digits") {
  struct Row {
    double degrees, t, two_sided;  // computed with mpmath
  };
  for (const Row& row : {Row{3, 0.5, 0.65144796484815099444}, Row{3, 1.7, 0.18769064155341008001},
                         Row{3, 10, 0.0021283990584141500574}, Row{9.5, 0.5, 0.62845210546620735966},
                         Row{9.5, 1.7, 0.1215711210682711748}, Row{9.5, 10, 2.3703854208507899924e-6},
                         Row{29, 2.5, 0.018325344338426076914}, Row{29, 10, 6.599862576433512408e-11},
                         Row{1000, 0.5, 0.61718508083387481464}, Row{1000, 1.7, 0.089441886959240033694},
                         Row{1000, 10, 1.6670702958600066308e-22}, Row{1e6, 0.5, 0.61707518747237138777},
                         Row{1e6, 1.7, 0.089131236490348760678}, Row{1e6, 10, 1.5278610768178249553e-23},
                         Row{1e9, 2.5, 0.012419330810402493945}, Row{1e9, 10, 1.5239744906091078084e-23}}) {
    CAPTURE(row.degrees);
    CAPTURE(row.t);
    CHECK(2 * student_cdf(-row.t, row.degrees) == near(row.two_sided));
    CHECK(student_cdf(row.t, row.degrees) == near(1 - row.two_sided / 2));
    CHECK(student_quantile(row.two_sided / 2, row.degrees) == near(-row.t));
  }
}

TEST_CASE("Student's own data have the published paired test") {
  const PairedDifference found = paired_difference(first_drug(), second_drug());
  CHECK(found.t == near(-4.062127683382036));
  CHECK(found.p == near(0.002832890197384272));
  CHECK(found.pairs == 10);
  CHECK(found.interval.estimate == near(-1.58));
  CHECK(std::abs(found.interval.low - -2.4598858) < 5e-8);
  CHECK(std::abs(found.interval.high - -0.7001142) < 5e-8);
  CHECK(found.deviation == near(1.2299954832798732));

  // Turned round, and as the interval of one sample; a higher level has a wider one.
  const PairedDifference turned = paired_difference(second_drug(), first_drug(), 0.99);
  CHECK(turned.t == -found.t);
  CHECK(turned.p == found.p);
  CHECK(turned.interval.low == near(1.58 - 3.2498355415921263 * 0.3889587238883952));  // t(0.995, 9)
  Numbers difference;
  for (std::size_t i = 0; i < 10; ++i) difference.push_back(first_drug()[i] - second_drug()[i]);
  const Interval one = mean_interval(difference);
  CHECK(one.low == found.interval.low);
  CHECK(one.high == found.interval.high);
}

TEST_CASE("Student's data, taken as two groups, have the published Welch test") {
  // As R's t.test(extra ~ group, data = sleep) prints it.
  const UnpairedDifference found = unpaired_difference(first_drug(), second_drug());
  CHECK(found.t == near(-1.8608, 3e-5));
  CHECK(found.degrees == near(17.776, 3e-5));
  CHECK(found.p == near(0.07939, 7e-5));
  CHECK(std::abs(found.interval.low - -3.3654832) < 5e-8);
  CHECK(std::abs(found.interval.high - 0.2054832) < 5e-8);
  const UnpairedDifference turned = unpaired_difference(second_drug(), first_drug());
  CHECK(turned.t == -found.t);
  CHECK(turned.p == found.p);
  // One that does not vary: the test of the other's mean alone. Neither varies: a point.
  const Numbers still(7, 2.0), other(4, 3.0);
  CHECK(unpaired_difference(second_drug(), still).degrees == near(9));
  CHECK(unpaired_difference(still, still).p == 1);
  CHECK(unpaired_difference(still, other).p == near(2 / 330.0));  // of 11 over 4 ways to share them out
  CHECK(unpaired_difference(still, other).interval.low == -1);
  // Units do not matter, however small or large.
  for (const double unit : {1e-300, 1e150}) {
    Numbers a = first_drug(), b = second_drug();
    for (double& x : a) x *= unit;
    for (double& x : b) x *= unit;
    CHECK(unpaired_difference(a, b).p == near(found.p, 1e-12));
  }
  CHECK(contains(message_of<ValueError>([] {
                   unpaired_difference(Numbers{1}, Numbers{1, 2});
                 }),
                 "a has 1 numbers, b has 2; need at least 2 runs of each"));
}

TEST_CASE("groups that do not differ are told apart as often as the level says, and an effect is found") {
  int apart = 0, found = 0;
  for (std::uint64_t table = 0; table < 1000; ++table) {
    Numbers wide = normal(6, 2 * table + 1);
    for (double& x : wide) x *= 3;  // they vary differently
    if (unpaired_difference(normal(9, 2 * table), wide).p < 0.05) ++apart;
    if (unpaired_difference(normal(9, 2 * table, 12), wide).p < 0.05) ++found;
  }
  CHECK(apart < 50 + 4 * 7);  // of 1,000 at 5 %: 50, give or take 7
  CHECK(apart > 50 - 4 * 7);
  CHECK(found > 990);
}

TEST_CASE("equivalence is the larger p of two one-sided tests") {
  // Student's data: p of both sides, computed with mpmath.
  CHECK(equivalence_p(first_drug(), second_drug(), 1) == near(0.914944114551289));
  CHECK(equivalence_p(first_drug(), second_drug(), 2) == near(0.154157235669097));
  CHECK(equivalence_p(first_drug(), second_drug(), 3) == near(0.00265557029265867));
  CHECK(equivalence_p(second_drug(), first_drug(), 3) == equivalence_p(first_drug(), second_drug(), 3));

  // Equivalent at 0.05 is an interval of level 0.90 inside of the margin.
  const Interval interval = paired_difference(first_drug(), second_drug(), 0.90).interval;
  CHECK(equivalence_p(first_drug(), second_drug(), -interval.low * 1.0001) < 0.05);
  CHECK(equivalence_p(first_drug(), second_drug(), -interval.low * 0.9999) > 0.05);
}

TEST_CASE("differences without any spread have a point for an interval") {
  const Numbers a = {1.1, 2.1, 3.1}, twice = {2.2, 4.2, 6.2}, zeros(3, 0.0), tenths(3, 0.1);
  const PairedDifference none = paired_difference(a, a), all = paired_difference(zeros, tenths);
  CHECK(none.p == 1);
  CHECK(none.t == 0);
  CHECK(none.interval.low == 0);
  CHECK(none.interval.high == 0);
  CHECK(all.p == 0.25);  // of three signs
  CHECK(all.t == -kInfinity);
  CHECK(all.deviation == 0);
  CHECK(all.interval.estimate == -0.1);  // the sum of three tenths, over three, is another number
  CHECK(all.interval.low == -0.1);
  CHECK(all.interval.high == -0.1);
  CHECK(paired_difference(twice, a).p > 0);

  CHECK(equivalence_p(a, a, 1e-9) == 0.125);
  CHECK(equivalence_p(zeros, tenths, 0.11) == 0.125);
  CHECK(equivalence_p(zeros, tenths, 0.1) == 1);
  CHECK(equivalence_p(zeros, tenths, 0.09) == 1);
  // Differences that cancel have no effect, with spread.
  CHECK(paired_difference(Numbers{1, -1}, Numbers{0, 0}).p == 1);
}

TEST_CASE("the sign test is that of coins") {
  CHECK(sign_test(0, 0) == 1);
  CHECK(sign_test(0, 7) == 1);
  CHECK(sign_test(3, 3) == 0.125);
  CHECK(sign_test(4, 5) == 6.0 / 32);
  CHECK(sign_test(9, 10) == 11.0 / 1024);
  CHECK(sign_test(1000, 1000) == 0x1p-1000);
  CHECK(sign_test(501, 1000) == near(0.4873874909108196));
}

TEST_CASE("what rounding tells apart does not vary") {
  CHECK_FALSE(varies(Numbers{}));
  CHECK_FALSE(varies(Numbers{3}));
  CHECK_FALSE(varies(Numbers{99.2 - 98.8, 99.6 - 99.2, 0.4}));
  CHECK(varies(Numbers{1, 1 + 1e-6}));
  CHECK(varies(Numbers{0, 1e-300}));
  CHECK(steady(Numbers{0.1 + 0.2, 0.3}) == Numbers{0.1 + 0.2, 0.1 + 0.2});
  CHECK(steady(Numbers{1, 2}) == Numbers{1, 2});
}

TEST_CASE("sizes of numbers do not matter to a paired test") {
  const PairedDifference plain = paired_difference(first_drug(), second_drug());
  for (const double unit : {0x1p-700, 0x1p700}) {
    CAPTURE(unit);
    Numbers a = first_drug(), b = second_drug();
    for (double& x : a) x *= unit;
    for (double& x : b) x *= unit;
    const PairedDifference scaled = paired_difference(a, b);
    CHECK(scaled.p == plain.p);
    CHECK(scaled.interval.low == plain.interval.low * unit);
  }
}

TEST_CASE("Holm's adjustment is that of the textbook example, in the given order") {
  const Numbers adjusted = holm(Numbers{0.01, 0.04, 0.03, 0.005}), expected = {0.03, 0.06, 0.06, 0.02};
  REQUIRE(adjusted.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) CHECK(adjusted[i] == near(expected[i], 1e-15));
  CHECK(holm(Numbers{}).empty());
  CHECK(holm(Numbers{0.2}) == Numbers{0.2});
  CHECK(holm(Numbers{0.5, 0, 1, 0.5}) == Numbers{1, 0, 1, 1});
}

TEST_CASE("Spearman's correlation gives ties their mean rank") {
  CHECK(spearman(Numbers{1, 2, 3, 5}, Numbers{1, 10, 100, 1e300}) == 1);
  CHECK(spearman(Numbers{1, 2, 2, 5}, Numbers{-1, -20, -20, -300}) == -1);
  // Ranks 1, 2.5, 2.5, 4 and 1, 3, 2, 4: 4.5 / sqrt(4.5 * 5).
  CHECK(spearman(Numbers{1, 2, 2, 4}, Numbers{1, 3, 2, 4}) == near(std::sqrt(0.9), 1e-15));
  // IQ and hours of television, a common example: -29/165.
  CHECK(spearman(Numbers{106, 100, 86, 101, 99, 103, 97, 113, 112, 110},
                 Numbers{7, 27, 2, 50, 28, 29, 20, 12, 6, 17}) == near(-29.0 / 165, 1e-15));
  CHECK(spearman(Numbers{0.0, -0.0, 1}, Numbers{1, 1, 2}) == 1);  // zeros of both signs are equal
}

TEST_CASE("the least squares slope is that of Anscombe's first data set") {
  const Numbers x = {10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5},
                y = {8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68};
  CHECK(slope(x, y) == near(0.5000909090909091));
  CHECK(slope(Numbers{1e9, 1e9 + 1, 1e9 + 2}, Numbers{3, 1, -1}) == -2);  // far from the origin
  CHECK(slope(Numbers{0, 1, 3}, Numbers{1e15, 1e15 + 2, 1e15 + 6}) == near(2));
  CHECK(slope(Numbers{0, 1e-200}, Numbers{0, 1}) == near(1e200));
}

TEST_CASE("tables without an effect are called significant as often as the level says") {
  int with_holm = 0, without = 0, covered = 0;
  for (std::uint64_t seed = 0; seed < kTables; ++seed) {
    const Table table(Numbers(5, 0.0), 5, seed);
    const Numbers p = table.p(), adjusted = holm(p);
    const auto significant = [](double value) { return value <= 0.05; };
    without += std::ranges::any_of(p, significant);
    with_holm += std::ranges::any_of(adjusted, significant);
    const Interval interval = paired_difference(table.a[0], table.b[0]).interval;
    covered += interval.low <= 0 && 0 <= interval.high;
  }
  check_share(with_holm, 1 - std::pow(1 - 0.05 / 5, 5));  // of independent rows: 0.049
  check_share(without, 1 - std::pow(0.95, 5));            // what an adjustment is for: 0.23
  check_share(covered, 0.95);
}

TEST_CASE("a planted effect is found in its row, and not in the others") {
  int found = 0, elsewhere = 0;
  for (std::uint64_t seed = 0; seed < kTables; ++seed) {
    const Numbers adjusted = holm(Table({0, 0, -5, 0}, 8, 77'000 + seed).p());
    found += adjusted[2] <= 0.05;
    elsewhere += std::min({adjusted[0], adjusted[1], adjusted[3]}) <= 0.05;
  }
  CHECK(found >= 990);
  check_share(elsewhere, 1 - std::pow(1 - 0.05 / 3, 3));  // three rows are left after the effect
}

TEST_CASE("equivalence is claimed inside of a margin, and outside as seldom as its level says") {
  int inside = 0, at_margin = 0, outside = 0;
  for (std::uint64_t seed = 0; seed < kTables; ++seed) {
    const Table table({0, 4, -6}, 10, 555'000 + seed);
    inside += equivalence_p(table.a[0], table.b[0], 4) <= 0.05;
    at_margin += equivalence_p(table.a[1], table.b[1], 4) <= 0.05;
    outside += equivalence_p(table.a[2], table.b[2], 4) <= 0.05;
  }
  CHECK(inside >= 990);
  check_share(at_margin, 0.05);
  CHECK(outside == 0);
}

TEST_CASE("the bootstrap of a mean is as wide as theory says, and covers it") {
  int covered = 0;
  double width = 0;
  for (std::uint64_t seed = 0; seed < kTables; ++seed) {
    const Numbers values = normal(40, 9'000'000 + seed, 3);
    const auto mean = [&](std::span<const std::size_t> chosen) { return mean_of_chosen(values, chosen); };
    const Interval interval = bootstrap(values.size(), mean, 200, seed);
    covered += interval.low <= 3 && 3 <= interval.high;
    width += (interval.high - interval.low) / kTables;
  }
  CHECK(covered >= 900);  // of 950: it is a little narrow
  CHECK(covered <= 965);
  CHECK(width == near(2 * 1.96 * std::sqrt(39.0 / 40) / std::sqrt(40.0), 0.04));
}

TEST_CASE("the bootstrap draws documents evenly, from seed and number of the resample alone") {
  const auto drawn = [](int resamples, std::uint64_t seed) {
    std::vector<std::vector<std::size_t>> out;
    bootstrap(
        10,
        [&](std::span<const std::size_t> chosen) {
          out.emplace_back(chosen.begin(), chosen.end());
          return 0.0;
        },
        resamples, seed);
    return out;
  };
  const auto few = drawn(40, 5), many = drawn(1000, 5);
  REQUIRE(few.size() == 41);
  REQUIRE(many.size() == 1001);
  CHECK(std::equal(few.begin(), few.end(), many.begin()));
  CHECK(few != drawn(40, 6));
  std::vector<std::size_t> all(10);
  std::iota(all.begin(), all.end(), std::size_t{0});
  CHECK(many[0] == all);
  std::vector<int> times(10);
  for (std::size_t r = 1; r < many.size(); ++r) {
    REQUIRE(many[r].size() == 10);
    for (const std::size_t i : many[r]) ++times.at(i);
  }
  for (const int count : times) CHECK(std::abs(count - 1000) < 3.9 * 30);  // sqrt(10'000 * 0.1 * 0.9) = 30
}

TEST_CASE("the bootstrap's ends are percentiles of what the statistic gave") {
  // Call r gives r: the estimate is 0, resamples are 1 .. 101 in another order.
  int calls = 0;
  const auto number = [&](std::span<const std::size_t>) { return static_cast<double>(calls++ * 37 % 102); };
  const Interval interval = bootstrap(2, number, 101, 0, 0.9);
  CHECK(interval.estimate == 0);
  Numbers values;
  for (int r = 1; r <= 101; ++r) values.push_back(r * 37 % 102);
  std::sort(values.begin(), values.end());
  CHECK(interval.low == near(values[5]));
  CHECK(interval.high == near(values[95]));
}

TEST_CASE("statistics are the same bits everywhere") {
  const PairedDifference paired = paired_difference(first_drug(), second_drug());
  const auto ratio = [](std::span<const std::size_t> chosen) {
    return mean_of_chosen(first_drug(), chosen) / (3 + mean_of_chosen(second_drug(), chosen));
  };
  const Interval ends = bootstrap(10, ratio, 1000, 42);
  const Numbers found = {paired.t,
                         paired.p,
                         paired.interval.low,
                         equivalence_p(first_drug(), second_drug(), 2),
                         student_cdf(-3.3, 12.5),
                         student_cdf(-20, 1e6),
                         student_quantile(0.975, 6),
                         student_quantile(1e-9, 1),
                         ends.low,
                         ends.high,
                         spearman(first_drug(), second_drug()),
                         slope(first_drug(), second_drug())};
  const Numbers expected = {-0x1.03f9e66413557p+2, 0x1.73500580792a9p-9,   -0x1.3add896495d78p+1,
                            0x1.3bb6c9ed1fd26p-3,  0x1.8b1aba427af11p-9,   0x1.d323e305c7c5ep-295,
                            0x1.393468546e654p+1,  -0x1.2f905fe2f0cebp+28, -0x1.c1e74254fddb7p-5,
                            0x1.2e1b60e719c2fp-2,  0x1.904a7904a7905p-1,   0x1.c7a77b669aba8p-1};
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i);
    CAPTURE(fmt::format("{:a}", found[i]));
    CHECK(found[i] == expected[i]);
  }
}

TEST_CASE("what statistics cannot answer is refused, with what to do") {
  const Numbers one = {1}, two = {1, 2}, three = {1, 2, 4}, broken = {1, kNaN}, infinite = {kInfinity, 1};
  const auto value = [](auto fn) { return message_of<ValueError>(fn); };
  const auto config = [](auto fn) { return message_of<ConfigError>(fn); };

  CHECK(contains(value([&] { mean_interval(one); }), "[mean_interval] 1 numbers; need at least 2"));
  CHECK(contains(value([&] { mean_interval({}); }), "0 numbers"));
  CHECK(contains(value([&] { mean_interval(broken); }), "x[1] is nan; leave that run out"));
  CHECK(contains(value([&] { mean_interval(infinite); }), "x[0] is inf"));
  CHECK(contains(value([&] { mean_interval(Numbers{1.7e308, 1.7e308}); }), "give them in a larger unit"));
  for (const double level : {0.0, 1.0, -0.5, 95.0, kNaN}) {
    CAPTURE(level);
    CHECK(contains(config([&] { mean_interval(two, level); }), "between 0 and 1, such as 0.95"));
    CHECK(contains(config([&] { paired_difference(two, two, level); }), "[paired_difference] level is"));
    CHECK(contains(config([&] {
                     bootstrap(
                         2, [](auto) { return 0.0; }, 100, 0, level);
                   }),
                   "[bootstrap] level"));
  }

  CHECK(contains(value([&] { paired_difference(two, three); }), "2 numbers a and 3 numbers b; need pairs"));
  CHECK(
      contains(value([&] { paired_difference(one, one); }), "[paired_difference] 1 pairs; need at least 2"));
  CHECK(contains(value([&] { paired_difference(two, broken); }), "b[1] is nan"));
  CHECK(contains(value([&] { equivalence_p(three, two, 1); }), "[equivalence_p] 3 numbers a"));
  CHECK(contains(value([&] { equivalence_p(infinite, two, 1); }), "a[0] is inf"));
  for (const double margin : {0.0, -1.0, kNaN, kInfinity})
    CHECK(contains(config([&] { equivalence_p(two, two, margin); }),
                   "the smallest difference that would matter"));

  CHECK(contains(value([&] { holm(Numbers{0.1, kNaN}); }), "[holm] p[1] is nan; need probabilities"));
  CHECK(contains(value([&] { holm(Numbers{1.1}); }), "p[0] is 1.1"));
  CHECK(contains(value([&] { holm(Numbers{0.5, -0.1}); }), "p[1] is -0.1"));

  CHECK(contains(value([&] { student_cdf(kNaN, 3); }), "t is nan"));
  for (const double degrees : {0.0, 0.5, kNaN, kInfinity})
    CHECK(contains(value([&] { student_cdf(1, degrees); }), "degrees of freedom; need at least 1"));
  CHECK(contains(value([&] { student_quantile(0.9, 0); }), "[student_quantile] 0 degrees"));
  for (const double p : {0.0, 1.0, kNaN})
    CHECK(contains(value([&] { student_quantile(p, 3); }), "need a probability between 0 and 1"));

  CHECK(contains(value([&] { spearman(two, three); }), "2 numbers x and 3 numbers y"));
  CHECK(contains(value([&] { spearman(two, Numbers{3, 3}); }), "all y are equal, 3"));
  CHECK(contains(value([&] { spearman(Numbers{7, 7}, two); }), "all x are equal, 7"));
  CHECK(contains(value([&] { spearman(two, broken); }), "y[1] is nan"));
  CHECK(contains(value([&] { slope(Numbers{0.1, 0.1, 0.1}, three); }), "all x are equal, 0.1"));
  CHECK(contains(value([&] { slope(one, one); }), "[slope] 1 pairs"));
  CHECK(contains(value([&] { slope(Numbers{0, 1e-300}, Numbers{0, 1e300}); }), "in another unit"));

  const auto zero = [](std::span<const std::size_t>) { return 0.0; };
  CHECK(contains(value([&] { bootstrap(1, zero, 100, 0); }), "1 documents; need at least 2"));
  CHECK(contains(value([&] { bootstrap(std::size_t{1} << 32, zero, 100, 0); }), "below 2^32"));
  CHECK(contains(config([&] { bootstrap(3, zero, 39, 0); }),
                 "39 resamples are too few for level 0.95; need at least 40"));
  CHECK(contains(config([&] { bootstrap(3, zero, 19, 0, 0.9); }), "need at least 20"));
  CHECK(bootstrap(3, zero, 20, 0, 0.9).estimate == 0);
  CHECK(contains(config([&] { bootstrap(3, nullptr, 100, 0); }), "empty function"));
  CHECK(contains(value([&] {
                   bootstrap(
                       3, [](auto) { return kNaN; }, 100, 0);
                 }),
                 "of all documents is nan"));
  int calls = 0;
  CHECK(contains(value([&] {
                   bootstrap(
                       3, [&](auto) { return ++calls == 9 ? kInfinity : 0; }, 100, 0);
                 }),
                 "of resample 7 is inf"));
  CHECK(contains(value([] { sign_test(4, 3); }), "[sign_test] 4 of 3"));
}
