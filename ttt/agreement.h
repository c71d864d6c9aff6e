// How far the results of two runs are apart: what proofs of agreement measure.
#pragma once

#include "ttt/inner_loop.h"

namespace nestgrad::ttt {

using Arrays = std::vector<Array>;

// Relative to each array's largest number; where that is zero but for rounding, to what is left of the
// largest of all arrays.
double worst_error(const Arrays& a, const Arrays& b);
// 0 if all bits are the same, else 1.
double worst_difference_of_bits(const Arrays& a, const Arrays& b);

// A scalar in which every output has a part of its own.
Tensor outer_loss(const std::vector<Tensor>& values);
// The output, then the last weights.
std::vector<Tensor> results_of(const InnerLoopResult& r);

}  // namespace nestgrad::ttt
