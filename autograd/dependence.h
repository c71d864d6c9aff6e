// Dependence: which nodes a derivative reaches, and where it is cut. Internal to autograd/.
#pragma once

#include "engine/body.h"
#include "engine/differentiable.h"

namespace nestgrad {

// Which nodes depend differentiably on the marked ones. A scan is marked if any of its values is.
std::vector<char> dependents(const std::deque<Node>& nodes, std::vector<char> marked);

// Inside a scan body: which of its nodes depend on marked inputs (of the scan), over all steps.
std::vector<char> active_in_body(const Body& body, const std::vector<char>& marked_inputs);

// Where the paths from node x of y's graph to y end, in words for an error message: the walk of
// why_disconnected (autograd/why.h).
std::string where_cut(Tensor y, NodeId x);

}  // namespace nestgrad
