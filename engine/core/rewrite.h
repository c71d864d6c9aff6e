// Rewriter: makes a graph anew, node after node, with changes. A pass says what becomes of the nodes that it
// is about; all others are copied. Copies are labelled like what they are copies of: level, line, scope,
// region. A rewriter is used by one thread; the thread's ThreadContext is as before when it is gone.
//
//   Rewriter to(old.nodes());
//   for (NodeId id = 0; id < old.size(); ++id)
//     to[id] = is_double_negation(id) ? to[inner(id)] : to.copy(id);
//   return to.lowered(inputs, outputs);
#pragma once

#include <map>
#include <memory>
#include <set>

#include "engine/core/body.h"

namespace nestgrad {

// A graph that takes the place of another one, with what it has for the other's inputs and outputs.
struct Lowered {
  std::shared_ptr<Graph> graph;
  std::vector<NodeId> inputs, outputs;
};

// New nodes are labelled like this one, until the caller's ContextGuard ends.
void label_like(const GraphNode& node);

class Rewriter {
 public:
  // `old` outlives the rewriter; options: of the new graph.
  explicit Rewriter(const std::deque<GraphNode>& old, GraphOptions options = {.share = false});

  Graph& graph() { return *graph_; }
  // The new tensor of an old node, which the pass sets; undefined: not made.
  Tensor& operator[](NodeId old) { return made_[static_cast<std::size_t>(old)]; }
  std::vector<Tensor> inputs(NodeId old) const;

  // The old node with its inputs' new tensors, or with others. Results of a scan that was replaced are those
  // of its replacement.
  Tensor copy(NodeId old) { return copy(old, inputs(old)); }
  Tensor copy(NodeId old, std::span<const Tensor> inputs);
  // An input of the new graph, with the name of the old one.
  Tensor input(NodeId old);
  // The old scan with another body. now: for each node of its body that is stacked, that of the new one.
  Tensor replace_scan(NodeId old, BodyPtr body, std::span<const Tensor> inputs, std::map<NodeId, NodeId> now);
  // The old scan with its body made anew, without inputs that this no longer reads. body: for the old body's
  // inputs, and for its outs and then the nodes of it that are `stacked`, what there is now.
  Tensor replace_body(NodeId old, const Lowered& body, const std::set<NodeId>& stacked);
  // What an old stack or final has become part of: its attributes in the new graph.
  Attrs attrs(const GraphNode& old) const;

  Lowered lowered(const std::vector<NodeId>& inputs, const std::vector<NodeId>& outputs) const;

 private:
  struct Scan {
    BodyPtr body;
    std::map<NodeId, NodeId> now;
  };
  const GraphNode& node(NodeId id) const { return old_[static_cast<std::size_t>(id)]; }
  // What took the place of the scan that this final or stack reads; null: nothing did, or it is neither.
  const Scan* replaced(const GraphNode& old) const;

  const std::deque<GraphNode>& old_;
  std::shared_ptr<Graph> graph_;
  std::vector<Tensor> made_;
  std::map<NodeId, Scan> scans_;  // those that were replaced
  ContextGuard guard_;
};

}  // namespace nestgrad
