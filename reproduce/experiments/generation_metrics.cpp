#include "reproduce/experiments/generation_metrics.h"

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"

namespace nestgrad::reproduce {

namespace {

void check(const Features& a, const Features& b) {
  for (const Features* part : {&a, &b}) {
    if (part->size() < 2) throw ValueError("[distance] two rows of features are needed at least");
    for (const std::vector<double>& row : *part)
      if (row.size() != a[0].size() || row.empty())
        throw ValueError("[distance] rows of features have different widths");
  }
}

double kernel(const std::vector<double>& x, const std::vector<double>& y) {
  double product = 0;
  for (std::size_t i = 0; i < x.size(); ++i) product += x[i] * y[i];
  const double base = product / static_cast<double>(x.size()) + 1;
  return base * base * base;
}

// The mean of all pairs of two different rows.
double within(const Features& a) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t k = 0; k < i; ++k) sum += kernel(a[i], a[k]);
  const auto n = static_cast<double>(a.size());
  return 2 * sum / (n * (n - 1));
}

std::vector<double> mean_of(const Features& a) {
  std::vector<double> out(a[0].size());
  for (const std::vector<double>& row : a)
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += row[i] / static_cast<double>(a.size());
  return out;
}

std::vector<double> covariance_of(const Features& a, const std::vector<double>& mean) {
  const std::size_t n = mean.size();
  std::vector<double> out(n * n);
  for (const std::vector<double>& row : a)
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t k = 0; k < n; ++k)
        out[i * n + k] += (row[i] - mean[i]) * (row[k] - mean[k]) / static_cast<double>(a.size() - 1);
  return out;
}

// a b of matrices [n, n].
std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b, std::size_t n) {
  std::vector<double> out(n * n);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t k = 0; k < n; ++k)
      for (std::size_t j = 0; j < n; ++j) out[i * n + j] += a[i * n + k] * b[k * n + j];
  return out;
}

}  // namespace

double kernel_distance(const Features& a, const Features& b) {
  check(a, b);
  double between = 0;
  for (const std::vector<double>& x : a)
    for (const std::vector<double>& y : b) between += kernel(x, y);
  return within(a) + within(b) -
         2 * between / (static_cast<double>(a.size()) * static_cast<double>(b.size()));
}

double frechet_distance(const Features& a, const Features& b) {
  check(a, b);
  const std::vector<double> mean_a = mean_of(a), mean_b = mean_of(b), of_a = covariance_of(a, mean_a),
                            of_b = covariance_of(b, mean_b);
  const std::size_t n = mean_a.size();
  double out = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double d = mean_a[i] - mean_b[i];
    out += d * d + of_a[i * n + i] + of_b[i * n + i];
  }
  // tr (C C')^1/2 = tr (R C' R)^1/2 with R = C^1/2.
  const EigenSystem e = eigen_of_symmetric(of_a, n);
  std::vector<double> root(n * n);
  for (std::size_t k = 0; k < n; ++k)
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j)
        root[i * n + j] +=
            std::sqrt(std::max(e.values[k], 0.0)) * e.vectors[i * n + k] * e.vectors[j * n + k];
  for (const double value : eigen_of_symmetric(product(product(root, of_b, n), root, n), n).values)
    out -= 2 * std::sqrt(std::max(value, 0.0));
  return out;
}

EigenSystem eigen_of_symmetric(std::vector<double> a, std::size_t n) {
  if (a.size() != n * n) throw ValueError("[eigen] a symmetric matrix has as many rows as columns");
  EigenSystem out{std::vector<double>(n), std::vector<double>(n * n)};
  for (std::size_t i = 0; i < n; ++i) out.vectors[i * n + i] = 1;
  for (int sweep = 0; sweep < 50; ++sweep) {
    double off = 0, on = 0;
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t k = 0; k < n; ++k) (i == k ? on : off) += a[i * n + k] * a[i * n + k];
    if (off <= 1e-30 * on) break;
    for (std::size_t p = 0; p < n; ++p)
      for (std::size_t q = p + 1; q < n; ++q) {
        const double apq = a[p * n + q];
        if (apq == 0) continue;
        const double theta = (a[q * n + q] - a[p * n + p]) / (2 * apq),
                     t = (theta >= 0 ? 1 : -1) / (std::abs(theta) + std::sqrt(theta * theta + 1)),
                     c = 1 / std::sqrt(t * t + 1), s = t * c;
        for (std::size_t i = 0; i < n; ++i) {
          const double x = a[i * n + p], y = a[i * n + q];
          a[i * n + p] = c * x - s * y, a[i * n + q] = s * x + c * y;
        }
        for (std::size_t i = 0; i < n; ++i) {
          const double x = a[p * n + i], y = a[q * n + i];
          a[p * n + i] = c * x - s * y, a[q * n + i] = s * x + c * y;
        }
        for (std::size_t i = 0; i < n; ++i) {
          const double x = out.vectors[i * n + p], y = out.vectors[i * n + q];
          out.vectors[i * n + p] = c * x - s * y, out.vectors[i * n + q] = s * x + c * y;
        }
      }
  }
  for (std::size_t i = 0; i < n; ++i) out.values[i] = a[i * n + i];
  return out;
}

}  // namespace nestgrad::reproduce
