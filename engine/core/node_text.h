// What messages say of a node of a graph.
#pragma once

#include "engine/core/graph.h"

namespace nestgrad {

std::string describe(const std::deque<GraphNode>& nodes, NodeId id);  // as describe(Tensor)
// What made a node, and where: matmul in layers.0 (file.cpp:31), input 'w' (file.cpp:9).
std::string origin(const std::deque<GraphNode>& nodes, NodeId id);
// The op as messages name it: within a function made of several, layer_norm: mul.
std::string called(std::string_view op);
// A kernel's error with the line of its node and where its operands came from. more: what follows the line.
ValueError value_error(const ValueError& e, const std::deque<GraphNode>& nodes, NodeId id,
                       const std::string& more = "");

}  // namespace nestgrad
