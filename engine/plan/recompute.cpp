#include "engine/plan/recompute.h"

#include <algorithm>
#include <unordered_map>

#include "engine/core/index.h"

namespace nestgrad {

namespace {

class Copies {
 public:
  Copies(const Graph& graph, Rewriter& to, const Recomputation& what) : graph_(graph), to_(to), what_(what) {}

  // Inputs of an old node in the new graph: copies where it reads them.
  std::vector<Tensor> inputs(NodeId reader) {
    const GraphNode& n = graph_.node(reader);
    label_like(n);
    std::vector<Tensor> out;
    for (NodeId in : n.inputs) out.push_back(what_.reads_copy(reader, in) ? copy(in) : to_[in]);
    return out;
  }

 private:
  Tensor copy(NodeId id) {
    std::vector<NodeId> path;  // what is copied may be longer than calls can nest
    if (!copies_.contains(id)) path.push_back(id);
    while (!path.empty()) {
      const NodeId at = path.back();
      const GraphNode& n = graph_.node(at);
      const auto is_missing = [&](NodeId in) { return what_.is_copied_too(at, in) && !copies_.contains(in); };
      const auto missing = std::ranges::find_if(n.inputs, is_missing);
      if (missing != n.inputs.end()) {
        path.push_back(*missing);
        continue;
      }
      std::vector<Tensor> in;
      for (NodeId i : n.inputs) in.push_back(what_.is_copied_too(at, i) ? copies_.at(i) : to_[i]);
      copies_.emplace(at, to_.graph().append(*n.op, in, n.attrs, n.loc));
      path.pop_back();
    }
    return copies_.at(id);
  }

  const Graph& graph_;
  Rewriter& to_;
  const Recomputation& what_;
  std::unordered_map<NodeId, Tensor> copies_;
};

}  // namespace

Lowered recompute(const Lowered& from, const Recomputation& what) {
  const Graph& graph = *from.graph;
  Rewriter to(graph.nodes());
  Copies copies(graph, to, what);
  for (NodeId id = 0; id < graph.size(); ++id) {
    const std::vector<Tensor> in = copies.inputs(id);
    to[id] = to.copy(id, in);
  }
  return to.lowered(from.inputs, from.outputs);
}

}  // namespace nestgrad
