// How far samples are from images, in features of a classifier of our own: never called FID or KID, whose network this is not.
// The same bits everywhere: sums go in the order of the rows, and eigenvalues are found by rotations.
#pragma once

#include <cstddef>
#include <vector>

namespace nestgrad::reproduce {

// Rows of features; all of the same width, at least two.
using Features = std::vector<std::vector<double>>;

// The squared maximum mean discrepancy with the kernel (x' y / width + 1)^3 (Binkowski et al. 2018), without bias: its mean is 0
// for samples of one distribution, and it may be below 0.
double kernel_distance(const Features& a, const Features& b);

// |mean - mean'|^2 + tr(C + C' - 2 (C C')^1/2) (Dowson and Landau 1982; Heusel et al. 2017). It is biased upwards for few rows:
// compare only distances of as many.
double frechet_distance(const Features& a, const Features& b);

// Of a symmetric matrix [n, n], row after row, by Jacobi's rotations: eigenvalues, and eigenvectors as columns [n, n].
struct EigenSystem {
  std::vector<double> values, vectors;
};
EigenSystem eigen_of_symmetric(std::vector<double> matrix, std::size_t n);

}  // namespace nestgrad::reproduce
