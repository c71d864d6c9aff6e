// Is a value affine in another, and with which factor? Decided from the op table's facts on the graph between
// the two.
#pragma once

#include <functional>
#include <string>

#include "engine/graph.h"

namespace nestgrad::ttt {

// The elementwise factor p in y = p x + (what does not depend on x), in the shape that it was written in (a
// number, one a row, ..); undefined if y does not depend on x. `refuse(node, why)` must throw: a node between
// them is not affine, or mixes elements.
Tensor linear_factor(Tensor y, Tensor x,
                     const std::function<void(Tensor at, const std::string& why)>& refuse);

// Does the op treat every element on its own, the same at every place?
bool is_elementwise(const Op& op, const Spec& first_input, const Spec& output);

}  // namespace nestgrad::ttt
