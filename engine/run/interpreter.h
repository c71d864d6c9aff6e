// Interpreter: runs a function op by op on the CPU, scans step by step, in the order of its graph. Nothing is
// planned, simplified, fused or recomputed, and every value can be looked at. Slow: for finding out what a
// program does, and what a plan has to agree with.
#pragma once

#include "engine/run/function.h"

namespace nestgrad {

// A value that was just computed, or an input of the function.
struct Visit {
  const GraphNode& node;
  NodeId id;                               // in the graph or body that the node is of
  const std::vector<NodeId>& within;       // enclosing scans and expanded ops, outermost first
  const std::vector<std::int64_t>& steps;  // the time of each enclosing scan, outermost first
  std::span<const Array> inputs;           // none for what reads a scan
  const Array& output;
  const std::deque<GraphNode>& nodes;  // the graph or body
};
using Visitor = std::function<bool(const Visit&)>;  // false: stop

// The function's outputs; none if the visitor stopped. Inputs come first, then each node that an output needs
// but scans, which have no value. An op without a CPU kernel is carried out, and visited, as what it expands
// to. ShapeError where inputs do not fit; what kernels throw is thrown with the line and the step.
std::vector<Array> interpret(const Function& function, const std::vector<Array>& inputs,
                             const Visitor& visit = {});

}  // namespace nestgrad
