// The passes that leave out what is dead, expand ops without a kernel and take the cheaper of equal
// expressions (Op::simplify): of a graph, and of the bodies of its scans.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "engine/core/index.h"
#include "engine/core/node_text.h"
#include "engine/plan/backend.h"
#include "engine/plan/passes.h"
#include "engine/plan/readers.h"

namespace nestgrad {

namespace {

bool needs_expansion(const Op& op, const Device& device) {
  return op.kind == OpKind::value && !op.is_alias &&
         !(device.is_cpu() ? op.cpu != nullptr : device.backend()->has_kernel(op));
}

// How a graph is made anew.
struct How {
  const Device& device;
  GraphOptions graph;
  bool drops_dead = false;  // does the caller leave out dead nodes?
};

Lowered rebuild(const std::deque<GraphNode>& nodes, const std::vector<NodeId>& inputs,
                const std::vector<NodeId>& outputs, const How& how) {
  const std::vector<char> live = live_nodes(nodes, outputs, inputs);
  Rewriter to(nodes, how.graph);
  for (NodeId id : inputs) to[id] = to.input(id);
  for (NodeId id = 0; id < static_cast<NodeId>(nodes.size()); ++id) {
    const GraphNode& n = nodes[uz(id)];
    if (!live[uz(id)] || to[id].defined()) continue;
    if (n.op->kind == OpKind::input)
      throw GraphError(fmt::format("[plan] {} is needed but was not given", describe(nodes, id)));
    if (needs_expansion(*n.op, how.device)) {
      if (!n.op->expand)
        throw GraphError(fmt::format("[{}] this op has neither a kernel for {} nor an expansion (at {})",
                                     n.op->name, how.device.name(), describe(n.loc)));
      label_like(n);
      to[id] = n.op->expand(to.inputs(id), n.attrs);
    } else {
      to[id] = to.copy(id);
    }
  }
  return to.lowered(inputs, outputs);
}

bool is_unfinished(const Graph& g, const Device& device) {
  return std::ranges::any_of(g.nodes(), [&](const GraphNode& n) { return needs_expansion(*n.op, device); });
}

bool has_dead_nodes(const Lowered& lowered) {
  std::vector<char> live = live_nodes(lowered.graph->nodes(), lowered.outputs, lowered.inputs);
  for (NodeId id : lowered.inputs) live[uz(id)] = 1;
  return std::ranges::count(live, 0) > 0;
}

// Expanded and simplified. An expansion may use ops that expand in turn; originals of simplified nodes are
// dead, and go away where they are not dropped anyway.
Lowered settled(const std::deque<GraphNode>& nodes, const std::vector<NodeId>& inputs,
                const std::vector<NodeId>& outputs, const How& how) {
  Lowered out = rebuild(nodes, inputs, outputs, how);
  bool again = !how.drops_dead && has_dead_nodes(out);
  while (std::exchange(again, false) || is_unfinished(*out.graph, how.device))
    out = rebuild(out.graph->nodes(), out.inputs, out.outputs, how);
  return out;
}

Lowered settle_bodies(Lowered from, const How& how);

// The scan with its body settled. `stacked` are nodes of the body.
Tensor settle_scan(Rewriter& to, NodeId id, const GraphNode& scan, const std::set<NodeId>& stacked,
                   const How& how) {
  const GraphBody& body = body_of(scan);
  std::vector<NodeId> inputs(uz(body.inputs())), outputs = body.outs;
  std::iota(inputs.begin(), inputs.end(), 0);
  outputs.insert(outputs.end(), stacked.begin(), stacked.end());
  return to.replace_body(id, settle_bodies(settled(body.nodes, inputs, outputs, how), how), stacked);
}

// The bodies of scans, settled too. It is done before anything is moved between them: an expression that
// rematerialization puts into another body must not be rounded otherwise because of what it finds there.
Lowered settle_bodies(Lowered from, const How& how) {
  const std::deque<GraphNode>& old = from.graph->nodes();
  if (std::ranges::none_of(old, is_scan)) return from;
  std::map<NodeId, std::set<NodeId>> stacked;
  for (const GraphNode& n : old)
    if (const StackAttrs* stack = n.attrs.find<StackAttrs>()) stacked[n.inputs[0]].insert(stack->node);
  Rewriter to(old);
  for (NodeId id = 0; id < from.graph->size(); ++id) {
    const GraphNode& n = from.graph->node(id);
    to[id] = is_scan(n) ? settle_scan(to, id, n, stacked[id], how) : to.copy(id);
    if (n.op->kind == OpKind::final && how.graph.simplify)  // the settled body may hand on a carry as it is
      if (const Tensor start = n.op->simplify(to[id]); start.defined()) to[id] = start;
  }
  return to.lowered(from.inputs, from.outputs);
}

}  // namespace

Lowered simplify_graph(const std::deque<GraphNode>& nodes, const std::vector<NodeId>& inputs,
                       const std::vector<NodeId>& outputs, const PlanOptions& options, bool of_scan) {
  return settled(nodes, inputs, outputs,
                 {.device = options.device, .graph = {.simplify = options.simplify, .round = !of_scan}});
}

Lowered simplify_bodies(const Lowered& from, const PlanOptions& options) {
  return settle_bodies(from, {.device = options.device,
                              .graph = {.simplify = options.simplify, .stack = false},
                              .drops_dead = true});  // close_body leaves them out
}

}  // namespace nestgrad
