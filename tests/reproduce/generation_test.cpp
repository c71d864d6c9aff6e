// The promise: samples are judged by distances that are what their formulas say.
#include <doctest/doctest.h>

#include <cmath>

#include "engine/core/random.h"
#include "reproduce/experiments/generation_metrics.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::reproduce;
using namespace nestgrad::testing;

namespace {

// n rows of normal numbers, each feature with this deviation, moved by `by`.
Features normal(std::size_t n, const std::vector<double>& deviations, double by, std::uint64_t seed) {
  const std::size_t width = deviations.size();
  const Array draws = random_normal({DType::f64, {static_cast<std::int64_t>(n * width)}}, 0, 1, seed, 0);
  Features out(n, std::vector<double>(width));
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t k = 0; k < width; ++k)
      out[i][k] = by + deviations[k] * draws.as<double>()[i * width + k];
  return out;
}

}  // namespace

TEST_CASE("generation: rotations find the eigenvalues and eigenvectors of symmetric matrices") {
  constexpr std::size_t n = 6;
  const Array draws = random_normal({DType::f64, {n, n}}, 0, 1, 1, 0);
  std::vector<double> a(n * n);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t k = 0; k < n; ++k)
      a[i * n + k] = draws.as<double>()[i * n + k] + draws.as<double>()[k * n + i];
  const EigenSystem e = eigen_of_symmetric(a, n);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t k = 0; k < n; ++k) {
      double product = 0, unit = 0;
      for (std::size_t j = 0; j < n; ++j) {
        product += a[i * n + j] * e.vectors[j * n + k];
        unit += e.vectors[j * n + i] * e.vectors[j * n + k];
      }
      CHECK(std::abs(product - e.values[k] * e.vectors[i * n + k]) < 1e-12);
      CHECK(std::abs(unit - (i == k ? 1 : 0)) < 1e-12);
    }
  CHECK(contains(message_of<ValueError>([&] { eigen_of_symmetric(a, 5); }), "as many rows as columns"));
}

TEST_CASE("generation: the Frechet distance of normal features is its closed form, and 0 to themselves") {
  const Features a = normal(4000, {1, 2, 0.5}, 0, 1), b = normal(4000, {2, 1, 0.5}, 1, 2);
  // |mean|^2 and, for independent features, the squared differences of the deviations.
  CHECK(frechet_distance(a, b) == doctest::Approx(3 + 1 + 1).epsilon(0.05));
  CHECK(std::abs(frechet_distance(a, a)) < 1e-9);
  CHECK(frechet_distance(a, b) == doctest::Approx(frechet_distance(b, a)).epsilon(1e-9));
  // Turned features have the same distance: correlations count.
  const auto turned = [](Features x) {
    for (std::vector<double>& row : x)
      row = {0.6 * row[0] - 0.8 * row[1], 0.8 * row[0] + 0.6 * row[1], row[2]};
    return x;
  };
  CHECK(frechet_distance(turned(a), turned(b)) == doctest::Approx(frechet_distance(a, b)).epsilon(1e-9));
}

TEST_CASE(
    "generation: the kernel distance is 0 on average for the same distribution, and its formula for two rows") {
  const Features a{{1, 0}, {0, 2}}, b{{1, 1}, {3, 0}};
  const auto kernel = [](double product) { return std::pow(product / 2 + 1, 3); };
  CHECK(kernel_distance(a, b) ==
        doctest::Approx(kernel(0) + kernel(3) - 2 * (kernel(1) + kernel(3) + kernel(2) + kernel(0)) / 4));
  double sum = 0;
  int below = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const double d = kernel_distance(normal(40, {1, 1}, 0, 2 * seed), normal(40, {1, 1}, 0, 2 * seed + 1));
    sum += d, below += d < 0;
  }
  CHECK(std::abs(sum / 40) < 0.2);
  CHECK(below > 5);
  CHECK(kernel_distance(normal(40, {1, 1}, 0, 1), normal(40, {1, 1}, 1, 2)) > 1);
  CHECK(contains(message_of<ValueError>([] { kernel_distance({{1}}, {{1}, {2}}); }), "two rows"));
  CHECK(contains(message_of<ValueError>([] {
                   kernel_distance({{1}, {2}}, {{1, 2}, {2, 1}});
                 }),
                 "different widths"));
}
