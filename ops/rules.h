// What other code asks about structure: the rows that simplification rules and the derived forms look for.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "engine/core/graph.h"
#include "ops/table.h"

namespace nestgrad {

// x for a permute that swaps the last two axes of x; undefined for anything else.
Tensor transposed_input(Tensor t);

// Axis i of a permute's result is axis order[i] of its input. Is it more than another shape of the same bytes? Not
// where the axes that have an extent stay in order.
bool moves_elements(const Shape& from, std::span<const int> order);
// The order that takes the axes back.
std::vector<int> inverse_order(std::span<const int> order);

// Simplification of ops that only rearrange: the input, if the output has its shape.
Tensor drop_if_nothing_changes(Tensor t);

// The number that every element of t is, if it is known to be one number.
std::optional<double> known_number(Tensor t);

inline const GraphNode& node_of(Tensor t) { return t.graph().node(t.id()); }
inline Tensor input_of(Tensor t, std::size_t i = 0) { return t.graph().tensor(node_of(t).inputs[i]); }

}  // namespace nestgrad
