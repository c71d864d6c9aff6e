// The promise: what can be told apart is, what cannot is not, and an exchange within pairs changes no distribution.
#include "reproduce/separation.h"

#include "engine/core/random.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::reproduce;

namespace {

// Normal vectors around (shift, 0, 0, ..).
Sample normal_sample(std::int64_t count, double shift, std::uint64_t seed) {
  Sample out{5, random_normal({DType::f64, {count, 5}}, 0, 1, seed, 0).to_vector()};
  for (std::size_t i = 0; i < out.numbers.size(); i += 5) out.numbers[i] += shift;
  return out;
}

}  // namespace

TEST_CASE("the area under the curve is the share of pairs in the right order, equal ones counting half") {
  const std::vector<double> a{1, 2, 3}, b{0, 2};
  CHECK(area_under_curve(a, b) == (1 + 1.5 + 2) / 6);
  CHECK(area_under_curve(b, a) == 1 - (1 + 1.5 + 2) / 6.0);
}

TEST_CASE(
    "a linear probe tells shifted samples apart, as well as their direction can, and equal ones not at all") {
  const Sample still = normal_sample(2000, 0, 1);
  CHECK(std::abs(linear_probe(normal_sample(2000, 0, 2), still) - 0.5) < 0.04);
  // Along the shift the difference of the two is normal around 1.5 with variance 2: Phi(1.5 / sqrt 2) = 0.8556.
  CHECK(std::abs(linear_probe(normal_sample(2000, 1.5, 2), still) - 0.8556) < 0.02);
  CHECK(std::abs(linear_probe(still, normal_sample(2000, 1.5, 2)) - 0.8556) < 0.02);
}

TEST_CASE(
    "the discrepancy of samples of one distribution is about 0, of others it is not, and p says which") {
  const Discrepancy same = discrepancy(normal_sample(150, 0, 3), normal_sample(150, 0, 4), 99, 0),
                    other = discrepancy(normal_sample(150, 1, 3), normal_sample(150, 0, 4), 99, 0);
  CHECK(std::abs(same.squared) < 0.01);
  CHECK(same.p > 0.05);
  CHECK(other.squared > 0.03);
  CHECK(other.p == 0.01);
  CHECK(discrepancy(normal_sample(150, 1, 3), normal_sample(150, 0, 4), 99, 0).squared == other.squared);
}

TEST_CASE("samples that cannot be compared are refused") {
  CHECK_THROWS_AS(linear_probe({5, std::vector<double>(40)}, {4, std::vector<double>(40)}), ValueError);
  CHECK_THROWS_AS(discrepancy({5, std::vector<double>(40)}, {5, std::vector<double>(20)}, 9, 0), ValueError);
  CHECK_THROWS_AS(discrepancy({5, std::vector<double>(40)}, {5, std::vector<double>(30)}, 9, 0), ValueError);
}
