// Claim: something that must be true of computed numbers, and by how much they miss it. Proofs of learners
// (ttt/conformance.h) and the views of an inspection (look/) state what they show as claims:
//
//   Claim{"the parts add up to the whole", relative_error(sum, whole), 1e-12}.holds()
#pragma once

#include <cmath>
#include <limits>
#include <string>

namespace nestgrad {

// The larger of two errors, NaN if one is: what std::max(a, NaN) would hide.
inline double worse(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
  return a < b ? b : a;
}

struct Claim {
  std::string claim;
  double error = 0, tolerance = 0;
  std::string unit = "relative";  // of error and tolerance
  std::string note = {};          // on what it was measured, or why it does not apply
  bool applies = true;

  bool holds() const { return !applies || error <= tolerance; }  // NaN does not hold
};

}  // namespace nestgrad
