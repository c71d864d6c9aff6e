// Can two samples of vectors be told apart? What a picture of points in the plane (t-SNE) shows only to the eye, as two
// numbers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace nestgrad::reproduce {

// Vectors of one width, one after the other.
struct Sample {
  std::int64_t width = 0;
  std::vector<double> numbers;
  std::int64_t size() const { return width ? static_cast<std::int64_t>(numbers.size()) / width : 0; }
  std::span<const double> at(std::int64_t i) const {
    return std::span(numbers).subspan(static_cast<std::size_t>(i * width), static_cast<std::size_t>(width));
  }
};

// The chance that a number of `a` is above one of `b`, equal ones counting half: 1/2 where nothing tells them apart.
double area_under_curve(std::span<const double> a, std::span<const double> b);

// A linear probe: Fisher's direction, of the first half of each sample, and the area under the curve that it has on the
// second half. ValueError for samples of different widths or of fewer than 4 vectors.
double linear_probe(const Sample& a, const Sample& b);

// The squared maximum mean discrepancy of pairs (a_i, b_i) (Gretton et al. 2012), unbiased, with a Gaussian kernel as wide
// as the median distance, and how often it is at least that large when a and b change places in each pair by a coin.
// ValueError as above, and for samples of different sizes.
struct Discrepancy {
  double squared, p;
};
Discrepancy discrepancy(const Sample& a, const Sample& b, int permutations, std::uint64_t seed);

}  // namespace nestgrad::reproduce
