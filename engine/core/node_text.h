// What messages say of a node of a graph.
#pragma once

#include "engine/core/graph.h"

namespace nestgrad {

std::string describe(const std::deque<GraphNode>& nodes, NodeId id);  // as describe(Tensor)
std::string origin(
    const GraphNode& n);  // what made it, and where: matmul (file.cpp:31), input 'w' (file.cpp:9)
// A kernel's error with the line of its node and where its operands came from. more: what follows the line.
ValueError value_error(const ValueError& e, const std::deque<GraphNode>& nodes, NodeId id,
                       const std::string& more = "");

}  // namespace nestgrad
