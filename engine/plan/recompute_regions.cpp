// The pass that recomputes checkpoint regions (autograd/custom.h).
#include <algorithm>
#include <unordered_map>

#include "engine/core/index.h"
#include "engine/plan/passes.h"

namespace nestgrad {

namespace {

// Nodes of a checkpoint region that a derivative reads, and that nothing of the region's own level reads from
// outside, are recomputed at their first such reader instead of being kept.
class Recompute {
 public:
  Recompute(const Graph& g, Rewriter& to) : graph_(g), to_(to), boundary_(uz(g.size()), 0) {
    for (NodeId id = 0; id < g.size(); ++id)
      for (NodeId in : g.node(id).inputs)
        if (outside(id, in) && g.node(id).level <= g.node(in).level) boundary_[uz(in)] = 1;
  }

  // Inputs of an old node in the new graph: clones where it reads them.
  std::vector<Tensor> inputs(NodeId reader) {
    const GraphNode& n = graph_.node(reader);
    label_like(n);  // clones are labelled like who reads them first
    std::vector<Tensor> out;
    for (NodeId in : n.inputs) out.push_back(reads_clone(reader, in) ? clone(in) : to_[in]);
    return out;
  }

 private:
  bool reads_clone(NodeId reader, NodeId in) const {
    return outside(reader, in) && graph_.node(reader).level > graph_.node(in).level && !boundary_[uz(in)] &&
           graph_.node(in).op->kind != OpKind::input;
  }

  // The clone of `id`, made when it is first asked for.
  Tensor clone(NodeId id) {
    const auto is_missing = [&](const GraphNode& n, NodeId in) {
      return is_inner(n, in) && !clones_.contains(in);
    };
    std::vector<NodeId> path;  // a region may be longer than calls can nest
    if (!clones_.contains(id)) path.push_back(id);
    while (!path.empty()) {
      const GraphNode& n = graph_.node(path.back());
      const auto missing = std::ranges::find_if(n.inputs, [&](NodeId in) { return is_missing(n, in); });
      if (missing != n.inputs.end()) {
        path.push_back(*missing);
        continue;
      }
      std::vector<Tensor> in;
      for (NodeId i : n.inputs) in.push_back(is_inner(n, i) ? clones_.at(i) : to_[i]);
      clones_.emplace(path.back(), to_.graph().append(*n.op, in, n.attrs, n.loc));
      path.pop_back();
    }
    return clones_.at(id);
  }

  // Is it cloned with the node that reads it?
  bool is_inner(const GraphNode& reader, NodeId in) const {
    return graph_.node(in).region == reader.region && !boundary_[uz(in)];
  }
  bool outside(NodeId reader, NodeId in) const {
    return graph_.node(in).region != 0 && graph_.node(reader).region != graph_.node(in).region;
  }

  const Graph& graph_;
  Rewriter& to_;
  std::vector<char> boundary_;
  std::unordered_map<NodeId, Tensor> clones_;
};

}  // namespace

Lowered recompute_regions(const Lowered& from) {
  const Graph& g = *from.graph;
  bool any = false;
  for (NodeId id = 0; id < g.size(); ++id) any = any || g.node(id).region != 0;
  if (!any) return from;

  Rewriter to(g.nodes());
  Recompute recompute(g, to);
  for (NodeId id = 0; id < g.size(); ++id) {
    const std::vector<Tensor> in = recompute.inputs(id);
    to[id] = to.copy(id, in);
  }
  return to.lowered(from.inputs, from.outputs);
}

}  // namespace nestgrad
