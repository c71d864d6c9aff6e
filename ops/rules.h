// Rows that simplification rules of other rows look for. Internal to ops/.
#pragma once

#include "engine/graph.h"

namespace nestgrad {

extern const Op& permute_op;
extern const Op& matmul_op;

inline const Node& node_of(Tensor t) { return t.graph().node(t.id()); }
inline Tensor input_of(Tensor t, std::size_t i = 0) { return t.graph().tensor(node_of(t).inputs[i]); }

}  // namespace nestgrad
