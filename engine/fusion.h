// Fusion: which ops of a program run as one instruction, and in which order. No bit changes; what lies
// between them stays in registers or in the first-level cache. Internal to the plan.
#pragma once

#include <unordered_map>
#include <vector>

#include "engine/graph.h"

namespace nestgrad {

struct Fusion {
  // What is issued together: one node, or the members of a cluster of this shape (cluster.h), in order.
  struct Group {
    std::vector<NodeId> nodes;
    Spec shape;
  };
  std::vector<Group> order;
  std::unordered_map<NodeId, NodeId> sums;  // sum -> the term whose kernel adds the other
};

Fusion fuse(const Graph& graph, const std::vector<char>& live, const std::vector<NodeId>& outputs);
// Every node by itself.
Fusion unfused(const Graph& graph, const std::vector<char>& live);

}  // namespace nestgrad
