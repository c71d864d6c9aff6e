// Fusion: which ops of a program run as one instruction, and in which order. No bit changes; what lies
// between them stays in registers or in near caches.
#pragma once

#include <unordered_map>
#include <vector>

#include "engine/plan/cluster.h"
#include "engine/plan/readers.h"

namespace nestgrad {

struct Fusion {
  // What is issued together: one node, or the members of a cluster of this shape (cluster.h), in order.
  struct Group {
    std::vector<NodeId> nodes;
    Spec shape;
  };
  std::vector<Group> order;
  std::unordered_map<NodeId, NodeId> sums;  // sum -> the term whose kernel adds the other

  // What the instruction of a node reads; of a sum, what its term reads, then the other.
  std::vector<NodeId> inputs_of(const Graph& graph, NodeId id) const;
};

// readers: as readers_of(graph, live, ..) tells; sums: whether kernels of products may add (Op::kernel_adding_to).
Fusion fuse(const Graph& graph, const std::vector<char>& live, const Readers& readers, bool sums);
// Brings products together that go over one matrix (engine/plan/gather_products.cpp).
void gather_products(const Graph& graph, Fusion& fusion);
// Every node by itself.
Fusion unfused(const Graph& graph, const std::vector<char>& live);

// What a cluster computes.
struct ClusterText {
  std::vector<ClusterOp> ops;  // one for each of the group's nodes
  std::vector<NodeId> inputs;
  std::vector<std::size_t> last_read;  // of an input: the last op that reads it
};
ClusterText text_of(const Fusion::Group& group, const Graph& graph, const Readers& readers);

}  // namespace nestgrad
