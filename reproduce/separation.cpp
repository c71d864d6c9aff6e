#include "reproduce/separation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/core/random.h"
#include "ops/numerics/functions.h"

namespace nestgrad::reproduce {

namespace {

constexpr std::int64_t kLeast = 4;
constexpr double kRidge = 1e-6;  // of the mean variance: directions without any have no say

void check(const Sample& a, const Sample& b) {
  if (a.width != b.width || a.size() < kLeast || b.size() < kLeast)
    throw ValueError(fmt::format(
        "[separation] two samples of vectors of one width, {} at least in each, are compared; they have {} of width {} "
        "and {} of width {}",
        kLeast, a.size(), a.width, b.size(), b.width));
}

Sample part(const Sample& s, std::int64_t from, std::int64_t to) {
  return {s.width, {s.numbers.begin() + from * s.width, s.numbers.begin() + to * s.width}};
}

std::vector<double> mean_of(const Sample& s) {
  std::vector<double> out(static_cast<std::size_t>(s.width), 0.0);
  for (std::int64_t i = 0; i < s.size(); ++i)
    for (std::size_t j = 0; j < out.size(); ++j) out[j] += s.at(i)[j];
  for (double& x : out) x /= static_cast<double>(s.size());
  return out;
}

double product(std::span<const double> a, std::span<const double> b) {
  double out = 0;
  for (std::size_t j = 0; j < a.size(); ++j) out += a[j] * b[j];
  return out;
}

// x of A x = b, A [n, n] symmetric and positive: by the factor L of A = L L'.
std::vector<double> solved(std::vector<double> A, std::vector<double> b) {
  const std::size_t n = b.size();
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double s = A[i * n + j];
      for (std::size_t k = 0; k < j; ++k) s -= A[i * n + k] * A[j * n + k];
      A[i * n + j] = i == j ? std::sqrt(s) : s / A[j * n + j];
    }
    for (std::size_t k = 0; k < i; ++k) b[i] -= A[i * n + k] * b[k];
    b[i] /= A[i * n + i];
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t k = i + 1; k < n; ++k) b[i] -= A[k * n + i] * b[k];
    b[i] /= A[i * n + i];
  }
  return b;
}

// (covariance of both)^-1 (mean of a - mean of b).
std::vector<double> fisher_direction(const Sample& a, const Sample& b) {
  const auto n = static_cast<std::size_t>(a.width);
  std::vector<double> within(n * n, 0.0), apart(n);
  const std::vector<double> mean_a = mean_of(a), mean_b = mean_of(b);
  for (const auto& [s, mean] : {std::pair{&a, &mean_a}, std::pair{&b, &mean_b}})
    for (std::int64_t i = 0; i < s->size(); ++i) {
      const std::span<const double> x = s->at(i);
      for (std::size_t r = 0; r < n; ++r)
        for (std::size_t c = 0; c <= r; ++c) within[r * n + c] += (x[r] - (*mean)[r]) * (x[c] - (*mean)[c]);
    }
  double trace = 0;
  for (std::size_t r = 0; r < n; ++r) trace += within[r * n + r];
  const double ridge = trace > 0 ? kRidge * trace / static_cast<double>(n) : 1;
  for (std::size_t r = 0; r < n; ++r) within[r * n + r] += ridge, apart[r] = mean_a[r] - mean_b[r];
  return solved(std::move(within), std::move(apart));
}

double distance(std::span<const double> a, std::span<const double> b) {
  double out = 0;
  for (std::size_t j = 0; j < a.size(); ++j) out += (a[j] - b[j]) * (a[j] - b[j]);
  return out;
}

}  // namespace

double area_under_curve(std::span<const double> a, std::span<const double> b) {
  std::vector<double> sorted(b.begin(), b.end());
  std::ranges::sort(sorted);
  double sum = 0;
  for (const double x : a) {
    const auto [low, high] = std::equal_range(sorted.begin(), sorted.end(), x);
    sum += static_cast<double>(low - sorted.begin()) + 0.5 * static_cast<double>(high - low);
  }
  return sum / (static_cast<double>(a.size()) * static_cast<double>(b.size()));
}

double linear_probe(const Sample& a, const Sample& b) {
  check(a, b);
  const std::int64_t half_a = a.size() / 2, half_b = b.size() / 2;
  const std::vector<double> direction = fisher_direction(part(a, 0, half_a), part(b, 0, half_b));
  std::vector<double> along_a, along_b;
  for (std::int64_t i = half_a; i < a.size(); ++i) along_a.push_back(product(a.at(i), direction));
  for (std::int64_t i = half_b; i < b.size(); ++i) along_b.push_back(product(b.at(i), direction));
  return area_under_curve(along_a, along_b);
}

Discrepancy discrepancy(const Sample& a, const Sample& b, int permutations, std::uint64_t seed) {
  check(a, b);
  if (a.size() != b.size())
    throw ValueError(
        fmt::format("[separation] pairs are compared, but there are {} and {}", a.size(), b.size()));
  const std::int64_t n = a.size();
  const auto each = [&](const auto& fn) {
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < i; ++j) fn(i, j);
  };
  std::vector<double> all;
  each([&](std::int64_t i, std::int64_t j) {
    for (const double d : {distance(a.at(i), a.at(j)), distance(b.at(i), b.at(j)), distance(a.at(i), b.at(j)),
                           distance(b.at(i), a.at(j))})
      all.push_back(d);
  });
  std::vector<double> sorted = all;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::ranges::nth_element(sorted, middle);
  const double width = *middle > 0 ? *middle : 1;  // squared
  // What pair i and pair j add: a change of places of one of the two turns its sign.
  std::vector<double> added;
  for (std::size_t at = 0; at < all.size(); at += 4) {
    const auto k = [&](std::size_t which) { return m::exp(-all[at + which] / width); };
    added.push_back(k(0) + k(1) - k(2) - k(3));
  }
  const auto total = [&](std::span<const double> sign) {
    double sum = 0;
    std::size_t at = 0;
    each([&](std::int64_t i, std::int64_t j) {
      sum += sign[static_cast<std::size_t>(i)] * sign[static_cast<std::size_t>(j)] * added[at++];
    });
    return 2 * sum / (static_cast<double>(n) * static_cast<double>(n - 1));
  };
  std::vector<double> sign(static_cast<std::size_t>(n), 1.0);
  const double found = total(sign);
  int above = 0;
  for (int p = 0; p < permutations; ++p) {
    for (std::size_t i = 0; i < sign.size(); ++i)
      sign[i] = random_below(2, seed, static_cast<std::uint64_t>(p), i) ? 1.0 : -1.0;
    above += total(sign) >= found;
  }
  return {found, (1.0 + above) / (1.0 + permutations)};
}

}  // namespace nestgrad::reproduce
