// What other code asks about structure: the rows that simplification rules and the derived forms look for.
#pragma once

#include <optional>

#include "engine/core/graph.h"
#include "ops/table.h"

namespace nestgrad {

// x for a permute that swaps the last two axes of x; undefined for anything else.
Tensor transposed_input(Tensor t);

// Simplification of ops that only rearrange: the input, if the output has its shape.
Tensor drop_if_nothing_changes(Tensor t);

// The number that every element of t is, if it is known to be one number.
std::optional<double> known_number(Tensor t);

inline const GraphNode& node_of(Tensor t) { return t.graph().node(t.id()); }
inline Tensor input_of(Tensor t, std::size_t i = 0) { return t.graph().tensor(node_of(t).inputs[i]); }

}  // namespace nestgrad
