// The pass that recomputes checkpoint regions (autograd/custom.h).
#include <algorithm>

#include "engine/core/index.h"
#include "engine/plan/passes.h"
#include "engine/plan/recompute.h"

namespace nestgrad {

// Nodes of a checkpoint region that a derivative reads, and that nothing of the region's own level reads from
// outside, are recomputed at their first such reader instead of being kept.
Lowered recompute_regions(const Lowered& from) {
  const Graph& g = *from.graph;
  const auto region = [&](NodeId id) { return g.node(id).region; };
  if (std::ranges::none_of(g.nodes(), [](const GraphNode& n) { return n.region != 0; })) return from;

  const auto outside = [&](NodeId reader, NodeId in) {
    return region(in) != 0 && region(reader) != region(in);
  };
  std::vector<char> boundary(uz(g.size()), 0);
  for (NodeId id = 0; id < g.size(); ++id)
    for (NodeId in : g.node(id).inputs)
      if (outside(id, in) && g.node(id).level <= g.node(in).level) boundary[uz(in)] = 1;
  return recompute(
      from, {.reads_copy =
                 [&](NodeId reader, NodeId in) {
                   return outside(reader, in) && g.node(reader).level > g.node(in).level &&
                          !boundary[uz(in)] && g.node(in).op->kind != OpKind::input;
                 },
             .is_copied_too = [&](NodeId copied,
                                  NodeId in) { return region(in) == region(copied) && !boundary[uz(in)]; }});
}

}  // namespace nestgrad
