#include "reproduce/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <string_view>

#include "engine/core/error.h"
#include "engine/core/random.h"
#include "ops/numerics/functions.h"

namespace nestgrad::reproduce {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::uint64_t kBootstrapStream = 0x626f6f74ull << 32;  // "boot"

void require_finite(std::string_view function, std::string_view name, std::span<const double> x) {
  for (std::size_t i = 0; i < x.size(); ++i)
    if (!std::isfinite(x[i]))
      throw ValueError(
          fmt::format("[{}] {}[{}] is {}; leave that run out and say so, or find out why it diverged",
                      function, name, i, x[i]));
}

void require_pairs(std::string_view function, std::string_view first, std::span<const double> a,
                   std::string_view second, std::span<const double> b) {
  if (a.size() != b.size())
    throw ValueError(fmt::format("[{}] {} numbers {} and {} numbers {}; need pairs, one of each", function,
                                 a.size(), first, b.size(), second));
  if (a.size() < 2) throw ValueError(fmt::format("[{}] {} pairs; need at least 2", function, a.size()));
  require_finite(function, first, a);
  require_finite(function, second, b);
}

void require_level(std::string_view function, double level) {
  if (!(level > 0 && level < 1))
    throw ConfigError(
        fmt::format("[{}] level is {}; need a probability between 0 and 1, such as 0.95", function, level));
}

void require_degrees(std::string_view function, double degrees) {
  if (!(degrees >= 1 && std::isfinite(degrees)))
    throw ValueError(
        fmt::format("[{}] {} degrees of freedom; need at least 1, and a finite number", function, degrees));
}

// ---- Student's t ----

// Gamma(x + 1/2) / Gamma(x) for x > 0: its asymptotic series from 32 on, where the first term that is left
// out is 2e-16; below by Gamma(x + 1) = x Gamma(x). A ratio from lgamma would lose digits to the difference.
double gamma_ratio(double x) {
  constexpr std::array series = {1.0,           -1.0 / 8,        1.0 / 128,       5.0 / 1024,
                                 -21.0 / 32768, -399.0 / 262144, 869.0 / 4194304, 39325.0 / 33554432};
  double below = 1;
  for (; x < 32; x += 1) below *= x / (x + 0.5);
  double sum = 0;
  for (std::size_t i = series.size(); i-- > 0;) sum = sum / x + series[i];
  return below * m::sqrt(x) * sum;
}

// I_x(a, 1/2), the regularised incomplete beta function, over x^a y^(1/2) / (a B(a, 1/2)): the even part of
// the continued fraction of DLMF 8.17.22, by Lentz's algorithm. y = 1 - x is given apart, and the levels are
// written in y where they nearly cancel in x: so nothing is lost for any number of degrees.
double beta_fraction(double a, double x, double y) {
  constexpr double b = 0.5;
  double level = (a * (1 - b) + y * a * (a + b)) / (a * (a + 1));
  double back = 1 / level, forth = kInfinity, value = back;
  for (double k = 1;; ++k) {
    const double odd = (a + k - 1) * (a + b + k - 1) * x / ((a + 2 * k - 2) * (a + 2 * k - 1));
    const double even = k * (k - b) * x / ((a + 2 * k - 1) * (a + 2 * k));
    const double numerator = -odd * even;
    level = (a * (2 * k + 1 - b) + k * (3 * k + 2 - b) + y * (a + k) * (a + b + k)) /
                ((a + 2 * k) * (a + 2 * k + 1)) -
            even;
    back = 1 / (level + numerator * back);
    forth = level + numerator / forth;
    value *= forth * back;
    if (std::abs(forth * back - 1) < 0x1p-49) return value;  // rounding leaves less than that
  }
}

// I_y(1/2, a) over 2 x^a y^(1/2) / B(a, 1/2): a series of positive terms.
double beta_series(double a, double y) {
  double term = 1, sum = 1;
  for (double k = 0; term > 0x1p-60 * sum; ++k) {
    term *= (a + 0.5 + k) / (1.5 + k) * y;
    sum += term;
  }
  return sum;
}

// P(|T| > t) for t >= 0: I_x(degrees / 2, 1/2) for x = degrees / (degrees + t^2), in the tails by the
// fraction, and in the middle by what I_y leaves of 1.
double two_tails(double t, double degrees) {
  const double a = degrees / 2, size = t / m::sqrt(degrees), square = size * size;
  const bool far = size > 1e8;  // 1 + square is square, which may overflow
  const double x = 1 / (1 + square), y = far ? 1 : square / (1 + square);
  const double log = far ? 2 * m::log(size) : m::log1p(square);
  const double root = far ? 1 : size / m::sqrt(1 + square);  // y^(1/2)
  const double front = m::exp(-a * log) * root * gamma_ratio(a) / m::sqrt(std::numbers::pi);
  if (y * (a + 2.5) > 1.5) return front / a * beta_fraction(a, x, y);
  return 1 - 2 * front * beta_series(a, y);
}

// ---- samples ----

struct Sample {
  double mean, deviation;
  std::size_t size;
  double degrees() const { return static_cast<double>(size - 1); }
  double error() const { return deviation / m::sqrt(static_cast<double>(size)); }  // of the mean
};

// The second sum takes away what the first one rounded: the mean of equal numbers is that number.
double mean_of(std::span<const double> x) {
  const double n = static_cast<double>(x.size());
  const double rough = std::accumulate(x.begin(), x.end(), 0.0) / n;
  double rest = 0;
  for (const double v : x) rest += v - rough;
  return rough + rest / n;
}

// max|x - centre|, by which distances are divided before they are squared: no square overflows, nor do all
// vanish.
double widest(std::span<const double> x, double centre) {
  double out = 0;
  for (const double v : x) out = std::max(out, std::abs(v - centre));
  return out;
}

Sample sample_of(std::string_view function, std::span<const double> x) {
  const double mean = mean_of(x), scale = widest(x, mean);
  double squares = 0;
  if (scale > 0)
    for (const double v : x) squares += (v - mean) / scale * ((v - mean) / scale);
  const Sample out{mean, scale * m::sqrt(squares / static_cast<double>(x.size() - 1)), x.size()};
  if (!std::isfinite(out.mean) || !std::isfinite(out.deviation))
    throw ValueError(
        fmt::format("[{}] the numbers are too large to be added; give them in a larger unit", function));
  return out;
}

Interval interval_of(const Sample& sample, double level) {
  if (sample.deviation == 0) return {sample.mean, sample.mean, sample.mean};
  const double half = -student_quantile((1 - level) / 2, sample.degrees()) * sample.error();
  return {sample.mean, sample.mean - half, sample.mean + half};
}

Sample differences(std::string_view function, std::span<const double> a, std::span<const double> b) {
  require_pairs(function, "a", a, "b", b);
  std::vector<double> difference;
  difference.reserve(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) difference.push_back(a[i] - b[i]);
  return sample_of(function, difference);
}

// The value below which a share p of sorted numbers lies, between neighbours in proportion.
double percentile(std::span<const double> sorted, double p) {
  const double at = p * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

// n over k.
double ways_to_choose(std::size_t n, std::size_t k) {
  double out = 1;
  for (std::size_t i = 1; i <= k; ++i) out = out * static_cast<double>(n - k + i) / static_cast<double>(i);
  return out;
}

// Twice the distance of each rank from the mean rank: a whole number, with ties too.
std::vector<double> ranks(std::span<const double> x) {
  std::vector<std::size_t> order(x.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t i, std::size_t j) { return x[i] < x[j]; });
  std::vector<double> out(x.size());
  for (std::size_t first = 0, end; first < x.size(); first = end) {
    end = first + 1;
    while (end < x.size() && x[order[end]] == x[order[first]]) ++end;
    for (std::size_t i = first; i < end; ++i)
      out[order[i]] = static_cast<double>(first + end) - static_cast<double>(x.size());
  }
  return out;
}

}  // namespace

double student_cdf(double t, double degrees) {
  require_degrees("student_cdf", degrees);
  if (std::isnan(t)) throw ValueError("[student_cdf] t is nan; need a number, or an infinity");
  const double tail = two_tails(std::abs(t), degrees) / 2;
  return t < 0 ? tail : 1 - tail;
}

double student_quantile(double p, double degrees) {
  require_degrees("student_quantile", degrees);
  if (!(p > 0 && p < 1))
    throw ValueError(fmt::format("[student_quantile] p is {}; need a probability between 0 and 1", p));
  if (p == 0.5) return 0;
  // Halves the place of |t| until there is no number between its ends.
  const double tails = 2 * std::min(p, 1 - p);
  double low = 0, high = 1;
  while (two_tails(high, degrees) > tails) low = high, high *= 2;
  for (double middle = high / 2 + low / 2; middle > low && middle < high; middle = high / 2 + low / 2)
    (two_tails(middle, degrees) > tails ? low : high) = middle;
  return p < 0.5 ? -high : high;
}

Interval mean_interval(std::span<const double> x, double level) {
  require_level("mean_interval", level);
  if (x.size() < 2)
    throw ValueError(
        fmt::format("[mean_interval] {} numbers; need at least 2 runs to see how they vary", x.size()));
  require_finite("mean_interval", "x", x);
  return interval_of(sample_of("mean_interval", x), level);
}

PairedDifference paired_difference(std::span<const double> a, std::span<const double> b, double level) {
  require_level("paired_difference", level);
  const Sample sample = differences("paired_difference", a, b);
  PairedDifference out{interval_of(sample, level), 0, 1, sample.deviation, sample.size};
  if (sample.mean == 0) return out;
  out.t = sample.deviation == 0 ? std::copysign(kInfinity, sample.mean) : sample.mean / sample.error();
  out.p = sample.deviation == 0 ? 2 * sign_test(sample.size, sample.size)
                                : two_tails(std::abs(out.t), sample.degrees());
  return out;
}

UnpairedDifference unpaired_difference(std::span<const double> a, std::span<const double> b, double level) {
  constexpr std::string_view kName = "unpaired_difference";
  require_level(kName, level);
  if (a.size() < 2 || b.size() < 2)
    throw ValueError(
        fmt::format("[{}] a has {} numbers, b has {}; need at least 2 runs of each to see how they vary",
                    kName, a.size(), b.size()));
  require_finite(kName, "a", a);
  require_finite(kName, "b", b);
  const Sample of_a = sample_of(kName, a), of_b = sample_of(kName, b);
  const double difference = of_a.mean - of_b.mean;
  const double larger = std::max(of_a.error(), of_b.error());
  if (larger == 0) {
    const bool equal = difference == 0;
    return {{difference, difference, difference},
            equal ? 0 : std::copysign(kInfinity, difference),
            of_a.degrees() + of_b.degrees(),
            equal ? 1.0 : 2 / ways_to_choose(a.size() + b.size(), a.size())};
  }
  // Squares of what is at most 1: none overflows, and not all vanish.
  const double x = of_a.error() / larger * (of_a.error() / larger),
               y = of_b.error() / larger * (of_b.error() / larger);
  const double error = larger * m::sqrt(x + y),
               degrees = (x + y) * (x + y) / (x * x / of_a.degrees() + y * y / of_b.degrees());
  const double half = -student_quantile((1 - level) / 2, degrees) * error, t = difference / error;
  return {{difference, difference - half, difference + half}, t, degrees, two_tails(std::abs(t), degrees)};
}

double equivalence_p(std::span<const double> a, std::span<const double> b, double margin) {
  if (!(margin > 0 && std::isfinite(margin)))
    throw ConfigError(fmt::format(
        "[equivalence_p] margin is {}; need the smallest difference that would matter, positive and "
        "finite",
        margin));
  const Sample sample = differences("equivalence_p", a, b);
  const double gap = margin - std::abs(sample.mean);  // to the nearer end, whose p is the larger one
  if (sample.deviation == 0) return gap > 0 ? sign_test(sample.size, sample.size) : 1;
  return student_cdf(-gap / sample.error(), sample.degrees());
}

double sign_test(std::size_t yes, std::size_t all) {
  if (yes > all || all > 1000)
    throw ValueError(
        fmt::format("[sign_test] {} of {}; need some of at most 1000, such as 3 of 5", yes, all));
  double sum = 0;
  for (std::size_t k = yes; k <= all; ++k) sum += std::ldexp(ways_to_choose(all, k), -static_cast<int>(all));
  return sum;
}

bool varies(std::span<const double> x) {
  if (x.empty()) return false;
  const auto [least, most] = std::ranges::minmax(x);
  return most - least > 1e-9 * std::max(std::abs(least), std::abs(most));
}

std::vector<double> steady(std::vector<double> x) {
  if (!x.empty() && !varies(x)) std::ranges::fill(x, x.front());
  return x;
}

std::vector<double> holm(std::span<const double> p) {
  for (std::size_t i = 0; i < p.size(); ++i)
    if (!(p[i] >= 0 && p[i] <= 1))
      throw ValueError(fmt::format("[holm] p[{}] is {}; need probabilities, 0 to 1", i, p[i]));
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t i, std::size_t j) { return p[i] < p[j]; });
  std::vector<double> out(p.size());
  double largest = 0;
  for (std::size_t k = 0; k < order.size(); ++k) {
    largest = std::max(largest, static_cast<double>(p.size() - k) * p[order[k]]);
    out[order[k]] = std::min(1.0, largest);
  }
  return out;
}

Interval bootstrap(std::size_t documents,
                   const std::function<double(std::span<const std::size_t> chosen)>& statistic, int resamples,
                   std::uint64_t seed, double level) {
  require_level("bootstrap", level);
  if (!statistic) throw ConfigError("[bootstrap] the statistic is an empty function; give one of documents");
  const double least = std::ceil(2 / (1 - level) * (1 - 1e-12));  // 1 - 0.9 is not quite 0.1
  if (resamples < least)
    throw ConfigError(fmt::format("[bootstrap] {} resamples are too few for level {}; need at least {:.0f}",
                                  resamples, level, least));
  if (documents < 2 || documents > std::numeric_limits<std::uint32_t>::max())
    throw ValueError(fmt::format("[bootstrap] {} documents; need at least 2, and below 2^32", documents));
  const auto value = [&](std::span<const std::size_t> chosen, std::string_view which, int number) {
    const double out = statistic(chosen);
    if (!std::isfinite(out))
      throw ValueError(
          fmt::format("[bootstrap] the statistic of {}{} is {}; need a finite number for any choice of "
                      "documents, with repetition",
                      which, number < 0 ? "" : fmt::format(" {}", number), out));
    return out;
  };
  std::vector<std::size_t> chosen(documents);
  std::iota(chosen.begin(), chosen.end(), std::size_t{0});
  const double estimate = value(chosen, "all documents", -1);
  std::vector<double> values;
  for (int r = 0; r < resamples; ++r) {
    for (std::size_t i = 0; i < documents; ++i)
      chosen[i] = random_below(static_cast<std::uint32_t>(documents), seed,
                               kBootstrapStream + static_cast<std::uint64_t>(r), i);
    values.push_back(value(chosen, "resample", r));
  }
  std::sort(values.begin(), values.end());
  const double outside = (1 - level) / 2;
  return {estimate, percentile(values, outside), percentile(values, 1 - outside)};
}

double spearman(std::span<const double> x, std::span<const double> y) {
  require_pairs("spearman", "x", x, "y", y);
  const std::vector<double> a = ranks(x), b = ranks(y);
  double aa = 0, bb = 0, ab = 0;
  for (std::size_t i = 0; i < a.size(); ++i) aa += a[i] * a[i], bb += b[i] * b[i], ab += a[i] * b[i];
  if (aa == 0 || bb == 0)
    throw ValueError(
        fmt::format("[spearman] all {} are equal, {}; they have no order: need two different ones at least",
                    aa == 0 ? "x" : "y", aa == 0 ? x[0] : y[0]));
  return ab / m::sqrt(aa * bb);
}

double slope(std::span<const double> x, std::span<const double> y) {
  require_pairs("slope", "x", x, "y", y);
  const double x_mean = mean_of(x), y_mean = mean_of(y), scale = widest(x, x_mean);
  if (scale == 0)
    throw ValueError(
        fmt::format("[slope] all x are equal, {}; a line needs two different ones at least", x[0]));
  double squares = 0, products = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = (x[i] - x_mean) / scale;
    squares += at * at;
    products += at * (y[i] - y_mean);
  }
  const double out = products / squares / scale;
  if (!std::isfinite(out))
    throw ValueError("[slope] the numbers are too large or too close; give them in another unit");
  return out;
}

}  // namespace nestgrad::reproduce
