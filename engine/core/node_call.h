// NodeCall: a node as the functions of its op see it.
#pragma once

#include "engine/core/graph.h"

namespace nestgrad {

std::vector<Spec> specs_of(const std::deque<GraphNode>& nodes, std::span<const NodeId> ids);

// Builds the OpCall of a node, which an op's functions are given; owns the specs of its inputs.
class NodeCall {
 public:
  NodeCall(const std::deque<GraphNode>& nodes, const GraphNode& n)
      : in_(specs_of(nodes, n.inputs)), call_{*n.op, in_, n.attrs, n.spec, &nodes, n.inputs} {}
  NodeCall(const NodeCall&) = delete;
  operator const OpCall&() const { return call_; }
  const Spec& in(std::size_t i) const { return in_[i]; }

 private:
  std::vector<Spec> in_;
  OpCall call_;
};

}  // namespace nestgrad
