#include "engine/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <unordered_map>
#include <utility>

#include "engine/index.h"

namespace nestgrad {

std::vector<char> live_nodes(const std::deque<Node>& nodes, std::span<const NodeId> wanted,
                             std::span<const NodeId> cuts) {
  std::vector<char> live(nodes.size(), 0), cut(nodes.size(), 0);
  for (NodeId id : cuts) cut[uz(id)] = 1;
  std::vector<NodeId> todo(wanted.begin(), wanted.end());
  while (!todo.empty()) {
    const auto id = uz(todo.back());
    todo.pop_back();
    if (std::exchange(live[id], 1) || cut[id]) continue;
    todo.insert(todo.end(), nodes[id].inputs.begin(), nodes[id].inputs.end());
  }
  return live;
}

std::vector<std::vector<Reader>> readers_of(const Graph& graph, const std::vector<char>& live,
                                            std::span<const NodeId> outputs) {
  std::vector<std::vector<Reader>> readers(uz(graph.size()));
  for (NodeId id = 0; id < graph.size(); ++id) {
    if (!live[uz(id)]) continue;
    const std::vector<NodeId>& in = graph.node(id).inputs;
    for (std::size_t i = 0; i < in.size(); ++i) readers[uz(in[i])].push_back({id, static_cast<NodeId>(i)});
  }
  for (NodeId id : outputs) readers[uz(id)].push_back({-1, 0});
  return readers;
}

bool reads_step_by_step(const Graph& graph, const Reader& reader) {
  if (reader.id < 0 || graph.node(reader.id).op->kind != OpKind::scan) return false;
  const Body& body = body_of(graph.node(reader.id));
  return reader.operand >= body.carries && reader.operand < body.carries + body.xs;
}

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
    const Node& n = graph_.node(reader);
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
    const auto is_missing = [&](const Node& n, NodeId in) {
      return is_inner(n, in) && !clones_.contains(in);
    };
    std::vector<NodeId> path;  // a region may be longer than calls can nest
    if (!clones_.contains(id)) path.push_back(id);
    while (!path.empty()) {
      const Node& n = graph_.node(path.back());
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
  bool is_inner(const Node& reader, NodeId in) const {
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

bool needs_expansion(const Op& op, const Device& device) {
  return op.kind == OpKind::value && !op.alias && !(device.is_cpu() ? op.cpu != nullptr : op.cuda != nullptr);
}

// How a graph is lowered.
struct How {
  const Device& device;
  GraphOptions graph;
  bool drops_dead = false;  // does the caller leave out dead nodes?
};

Lowered rebuild(const std::deque<Node>& nodes, const std::vector<NodeId>& inputs,
                const std::vector<NodeId>& outputs, const How& how) {
  const std::vector<char> live = live_nodes(nodes, outputs, inputs);
  Rewriter to(nodes, how.graph);
  for (NodeId id : inputs) to[id] = to.input(id);
  for (NodeId id = 0; id < static_cast<NodeId>(nodes.size()); ++id) {
    const Node& n = nodes[uz(id)];
    if (!live[uz(id)] || to[id].defined()) continue;
    if (n.op->kind == OpKind::input)
      throw GraphError(fmt::format("[plan] input %{} '{}' ({}) is needed but was not given", id,
                                   input_name(n), describe(n.loc)));
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
  return std::ranges::any_of(g.nodes(), [&](const Node& n) { return needs_expansion(*n.op, device); });
}

bool has_dead_nodes(const Lowered& lowered) {
  std::vector<char> live = live_nodes(lowered.graph->nodes(), lowered.outputs, lowered.inputs);
  for (NodeId id : lowered.inputs) live[uz(id)] = 1;
  return std::ranges::count(live, 0) > 0;
}

// Expanded and simplified. An expansion may use ops that expand in turn; originals of simplified nodes are
// dead, and go away where they are not dropped anyway.
Lowered settled(const std::deque<Node>& nodes, const std::vector<NodeId>& inputs,
                const std::vector<NodeId>& outputs, const How& how) {
  Lowered out = rebuild(nodes, inputs, outputs, how);
  bool again = !how.drops_dead && has_dead_nodes(out);
  while (std::exchange(again, false) || is_unfinished(*out.graph, how.device))
    out = rebuild(out.graph->nodes(), out.inputs, out.outputs, how);
  return out;
}

Lowered settle_bodies(Lowered from, const How& how);

// The scan with its body settled, without inputs that this no longer reads. `stacked` are nodes of the body.
Tensor settle_scan(Rewriter& to, NodeId id, const Node& scan, const std::set<NodeId>& stacked,
                   const How& how) {
  const Body& body = body_of(scan);
  std::vector<NodeId> inputs(uz(body.inputs())), outputs = body.outs;
  std::iota(inputs.begin(), inputs.end(), 0);
  outputs.insert(outputs.end(), stacked.begin(), stacked.end());
  const Lowered inner = settle_bodies(settled(body.nodes, inputs, outputs, how), how);

  const auto first_x = inner.inputs.begin() + body.carries, first_const = first_x + body.xs;
  const auto first_stacked = inner.outputs.begin() + body.carries;
  const Closed closed = close_body(*inner.graph, {.carries = {inner.inputs.begin(), first_x},
                                                  .xs = {first_x, first_const},
                                                  .consts = {first_const, inner.inputs.end()},
                                                  .outs = {inner.outputs.begin(), first_stacked},
                                                  .keep = {first_stacked, inner.outputs.end()},
                                                  .replace = {}});
  std::map<NodeId, NodeId> now;
  for (auto kept = closed.keep.begin(); NodeId each : stacked) now.emplace(each, *kept++);
  const std::vector<Tensor> in = to.inputs(id);
  std::vector<Tensor> left(in.begin(), in.begin() + body.carries);
  for (std::size_t i : closed.live_xs) left.push_back(in[uz(body.carries) + i]);
  for (std::size_t i : closed.live_consts) left.push_back(in[uz(body.carries + body.xs) + i]);
  return to.replace_scan(id, closed.body, left, std::move(now));
}

// The bodies of scans, settled too. It is done before anything is moved between them: an expression that
// rematerialization puts into another body must not be rounded otherwise because of what it finds there.
Lowered settle_bodies(Lowered from, const How& how) {
  const std::deque<Node>& old = from.graph->nodes();
  if (std::ranges::none_of(old, [](const Node& n) { return n.op->kind == OpKind::scan; })) return from;
  std::map<NodeId, std::set<NodeId>> stacked;
  for (const Node& n : old)
    if (const StackAttrs* stack = n.attrs.find<StackAttrs>()) stacked[n.inputs[0]].insert(stack->node);
  Rewriter to(old);
  for (NodeId id = 0; id < from.graph->size(); ++id) {
    const Node& n = from.graph->node(id);
    to[id] = n.op->kind == OpKind::scan ? settle_scan(to, id, n, stacked[id], how) : to.copy(id);
  }
  return to.lowered(from.inputs, from.outputs);
}

}  // namespace

Lowered lower(const std::deque<Node>& nodes, const std::vector<NodeId>& inputs,
              const std::vector<NodeId>& outputs, const PlanOptions& options, bool of_scan) {
  How how{.device = options.device, .graph = {.simplify = options.simplify, .round = !of_scan}};
  Lowered out = settled(nodes, inputs, outputs, how);
  if (options.simplify && !of_scan) {
    how.graph.stack = false;
    how.drops_dead = true;  // close_body does
    out = settle_bodies(std::move(out), how);
  }
  return recompute_regions(out);
}

}  // namespace nestgrad
