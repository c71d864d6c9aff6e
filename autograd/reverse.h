// Reverse: one walk from seeds back to what they depend on. It visits each node after all that read it, asks
// its op for the cotangents of its inputs, and adds them up. It looks at no node before the first of `wrt`:
// nothing that old depends on them, and a gradient in each step of a long loop costs as much as its step.
#pragma once

#include <map>
#include <unordered_map>

#include "autograd/grad.h"
#include "engine/core/body.h"

namespace nestgrad {

// Rules make leaves (ones, zeros), which go to the open graph: y's own if none is open.
class OpenGraph : ContextGuard {
 public:
  explicit OpenGraph(Tensor y) {
    Graph*& open = context().emit.graph;
    if (!open || !open->descends_from(y.graph())) open = &y.graph();
  }
};

class Reverse {
 public:
  Reverse(Graph& graph, std::span<const Seed> seeds, std::span<const NodeId> wrt,
          std::span<const Tensor> initial);
  Tensor cotangent(NodeId id) const;  // after run()
  void run();

 private:
  // Cotangents that arrived at the projections of a scan.
  struct ScanCotangents {
    std::map<std::int64_t, Tensor> finals;  // by carry
    std::map<std::int64_t, Tensor> stacks;  // by body node
  };

  bool depends(NodeId id) const { return id >= first_ && depends_[at(id)]; }  // on `wrt`
  std::size_t at(NodeId id) const { return static_cast<std::size_t>(id - first_); }
  void add(NodeId id, Tensor ct);
  void through_op(NodeId id);
  void through_scan(NodeId id);  // scan_vjp.cpp

  Graph& graph_;
  NodeId first_ = 0;           // of `wrt`, the oldest
  std::vector<NodeId> order_;  // of what the seeds are made of and depends on `wrt`: each after its inputs
  int level_ = 1;              // of the nodes that the walk appends: one above what it differentiates
  // From node first_ on, as far as there were nodes when the walk began.
  std::vector<char> depends_;
  std::vector<Tensor> cotangents_;
  std::unordered_map<NodeId, ScanCotangents> scans_;
};

}  // namespace nestgrad
