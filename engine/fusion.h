// Fusion: which ops of a program run as one instruction. No bit changes; what lies between them stays in
// registers or in the first-level cache. Internal to the plan.
#pragma once

#include <unordered_map>

#include "engine/graph.h"

namespace nestgrad {

struct Fusion {
  std::unordered_map<NodeId, NodeId> heads;                  // node -> the last of those it runs with
  std::unordered_map<NodeId, std::vector<NodeId>> clusters;  // head -> the others, in order (cluster.h)
  std::unordered_map<NodeId, NodeId> sums;                   // head -> the term whose kernel adds the other

  NodeId head_of(NodeId id) const {
    const auto head = heads.find(id);
    return head == heads.end() ? id : head->second;
  }
};

Fusion fuse(const Graph& graph, const std::vector<char>& live, const std::vector<NodeId>& outputs);

}  // namespace nestgrad
