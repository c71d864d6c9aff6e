// Scales of updates: what a step of a loop carries on as w - s A B, with a number s, becomes w + A (-s B), where B is
// smaller than the product. A step of gradient descent then scales the cotangents of a mini-batch instead of a
// matrix of weights. As it is done before the loop is differentiated, the derivative does the same, and need not read the product
// to find the derivative by s.
#pragma once

#include <vector>

#include "engine/core/tensor.h"

namespace nestgrad {

// In place of what `graph` carries on. kept: what else it gives; a product that something else reads stays.
void fold_scales(Graph& graph, std::vector<Tensor>& carries, const std::vector<Tensor>& kept);

}  // namespace nestgrad
