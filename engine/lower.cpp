#include "engine/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "engine/body.h"

namespace nestgrad {

std::vector<char> live_nodes(const std::deque<Node>& nodes, std::span<const NodeId> wanted,
                             std::span<const NodeId> cuts) {
  std::vector<char> live(nodes.size(), 0), cut(nodes.size(), 0);
  for (NodeId id : cuts) cut[static_cast<std::size_t>(id)] = 1;
  std::vector<NodeId> todo(wanted.begin(), wanted.end());
  while (!todo.empty()) {
    const auto id = static_cast<std::size_t>(todo.back());
    todo.pop_back();
    if (std::exchange(live[id], 1) || cut[id]) continue;
    todo.insert(todo.end(), nodes[id].inputs.begin(), nodes[id].inputs.end());
  }
  return live;
}

std::vector<std::vector<Reader>> readers_of(const Graph& graph, const std::vector<char>& live,
                                            std::span<const NodeId> outputs) {
  std::vector<std::vector<Reader>> readers(static_cast<std::size_t>(graph.size()));
  for (NodeId id = 0; id < graph.size(); ++id) {
    if (!live[static_cast<std::size_t>(id)]) continue;
    const std::vector<NodeId>& in = graph.node(id).inputs;
    for (std::size_t i = 0; i < in.size(); ++i)
      readers[static_cast<std::size_t>(in[i])].push_back({id, static_cast<NodeId>(i)});
  }
  for (NodeId id : outputs) readers[static_cast<std::size_t>(id)].push_back({-1, 0});
  return readers;
}

bool reads_step_by_step(const Graph& graph, const Reader& reader) {
  if (reader.id < 0 || graph.node(reader.id).op->kind != OpKind::scan) return false;
  const Body& body = body_of(graph.node(reader.id));
  return reader.operand >= body.carries && reader.operand < body.carries + body.xs;
}

void label_like(const Node& n) {
  EmitState& state = emit_state();
  state.level = n.level;
  state.vjp_of = {};
  state.region = n.region;
  state.loc = n.loc;
  state.scope = n.scope;
}

namespace {

// Nodes of a checkpoint region that a derivative reads, and that nothing of the region's own level reads from
// outside, are recomputed at their first such reader instead of being kept.
class Recompute {
 public:
  explicit Recompute(const Graph& g) : graph_(g), boundary_(static_cast<std::size_t>(g.size()), 0) {
    for (NodeId id = 0; id < g.size(); ++id)
      for (NodeId in : g.node(id).inputs)
        if (outside(id, in) && g.node(id).level <= g.node(in).level)
          boundary_[static_cast<std::size_t>(in)] = 1;
  }

  bool reads_clone(NodeId reader, NodeId in) const {
    return outside(reader, in) && graph_.node(reader).level > graph_.node(in).level &&
           !boundary_[static_cast<std::size_t>(in)] && graph_.node(in).op->kind != OpKind::input;
  }

  // The clone of `id`, made in `out` when first asked for; `made` maps nodes to their ordinary copies.
  NodeId clone(NodeId id, Graph& out, const std::vector<NodeId>& made) {
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
      for (NodeId i : n.inputs)
        in.push_back(out.tensor(is_inner(n, i) ? clones_.at(i) : made[static_cast<std::size_t>(i)]));
      clones_.emplace(path.back(), out.append(*n.op, in, n.attrs, n.loc).id());
      path.pop_back();
    }
    return clones_.at(id);
  }

 private:
  // Is it cloned with the node that reads it?
  bool is_inner(const Node& reader, NodeId in) const {
    return graph_.node(in).region == reader.region && !boundary_[static_cast<std::size_t>(in)];
  }
  bool outside(NodeId reader, NodeId in) const {
    return graph_.node(in).region != 0 && graph_.node(reader).region != graph_.node(in).region;
  }

  const Graph& graph_;
  std::vector<char> boundary_;
  std::unordered_map<NodeId, NodeId> clones_;
};

Lowered recompute_regions(const Lowered& from) {
  const Graph& g = *from.graph;
  bool any = false;
  for (NodeId id = 0; id < g.size(); ++id) any = any || g.node(id).region != 0;
  if (!any) return from;

  Lowered to{std::make_shared<Graph>(GraphOptions{.share = false}), {}, {}};
  Recompute recompute(g);
  std::vector<NodeId> made(static_cast<std::size_t>(g.size()), -1);
  EmitGuard guard;
  for (NodeId id = 0; id < g.size(); ++id) {
    const Node& n = g.node(id);
    label_like(n);
    if (n.op->kind == OpKind::input) {
      made[static_cast<std::size_t>(id)] = to.graph->input(n.spec, input_name(n)).id();
      continue;
    }
    std::vector<Tensor> in;
    for (NodeId i : n.inputs)
      in.push_back(to.graph->tensor(recompute.reads_clone(id, i) ? recompute.clone(i, *to.graph, made)
                                                                 : made[static_cast<std::size_t>(i)]));
    made[static_cast<std::size_t>(id)] = to.graph->append(*n.op, in, n.attrs, n.loc).id();
  }
  for (NodeId id : from.inputs) to.inputs.push_back(made[static_cast<std::size_t>(id)]);
  for (NodeId id : from.outputs) to.outputs.push_back(made[static_cast<std::size_t>(id)]);
  return to;
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
  Lowered to{std::make_shared<Graph>(how.graph), {}, {}};
  std::vector<Tensor> made(nodes.size());
  EmitGuard guard;
  emit_state().graph = to.graph.get();
  for (NodeId id : inputs) {
    const Node& n = nodes[static_cast<std::size_t>(id)];
    label_like(n);
    made[static_cast<std::size_t>(id)] = to.graph->input(n.spec, input_name(n));
    to.inputs.push_back(made[static_cast<std::size_t>(id)].id());
  }
  std::vector<Tensor> in;
  for (std::size_t id = 0; id < nodes.size(); ++id) {
    const Node& n = nodes[id];
    if (!live[id] || made[id].defined()) continue;
    label_like(n);
    if (n.op->kind == OpKind::input)
      throw GraphError(fmt::format("[plan] input %{} '{}' ({}) is needed but was not given", id,
                                   input_name(n), describe(n.loc)));
    in.clear();
    for (NodeId i : n.inputs) in.push_back(made[static_cast<std::size_t>(i)]);
    if (needs_expansion(*n.op, how.device)) {
      if (!n.op->expand)
        throw GraphError(fmt::format("[{}] this op has neither a kernel for {} nor an expansion (at {})",
                                     n.op->name, how.device.name(), describe(n.loc)));
      made[id] = n.op->expand(in, n.attrs);
    } else {
      made[id] = to.graph->append(*n.op, in, n.attrs, n.loc);
    }
  }
  for (NodeId id : outputs) to.outputs.push_back(made[static_cast<std::size_t>(id)].id());
  return to;
}

bool is_unfinished(const Graph& g, const Device& device) {
  return std::ranges::any_of(g.nodes(), [&](const Node& n) { return needs_expansion(*n.op, device); });
}

bool has_dead_nodes(const Lowered& lowered) {
  std::vector<char> live = live_nodes(lowered.graph->nodes(), lowered.outputs, lowered.inputs);
  for (NodeId id : lowered.inputs) live[static_cast<std::size_t>(id)] = 1;
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

// The bodies of scans, settled too. It is done before anything is moved between them: an expression that
// rematerialization puts into another body must not be rounded otherwise because of what it finds there.
class SettleBodies {
 public:
  SettleBodies(const Lowered& from, const How& how)
      : from_(from), old_(*from.graph), how_(how), made_(static_cast<std::size_t>(old_.size())) {
    for (const Node& n : old_.nodes())
      if (n.op->kind == OpKind::stack) scans_[n.inputs[0]].now.emplace(n.attrs.as<StackAttrs>().node, -1);
  }

  Lowered run() {
    Lowered to{std::make_shared<Graph>(GraphOptions{.share = false}), {}, {}};
    const EmitGuard guard;
    for (NodeId id = 0; id < old_.size(); ++id) {
      const Node& n = old_.node(id);
      label_like(n);
      std::vector<Tensor> in;
      for (NodeId i : n.inputs) in.push_back(made(i));
      Attrs attrs = n.attrs;
      if (n.op->kind == OpKind::scan) {
        settle(id, in, attrs);
      } else if (n.op->kind == OpKind::final) {
        attrs = FinalAttrs{scans_.at(n.inputs[0]).body, attrs.as<FinalAttrs>().carry};
      } else if (n.op->kind == OpKind::stack) {
        const Settled& scan = scans_.at(n.inputs[0]);
        const StackAttrs& before = attrs.as<StackAttrs>();
        attrs = StackAttrs{scan.body, scan.now.at(before.node), before.steps};
      }
      made(id) = n.op->kind == OpKind::input ? to.graph->input(n.spec, input_name(n))
                                             : to.graph->append(*n.op, in, std::move(attrs), n.loc);
    }
    for (NodeId id : from_.inputs) to.inputs.push_back(made(id).id());
    for (NodeId id : from_.outputs) to.outputs.push_back(made(id).id());
    return to;
  }

 private:
  struct Settled {
    std::shared_ptr<const Body> body;
    std::map<NodeId, NodeId> now;  // stacked node of the old body -> of the new one
  };
  Tensor& made(NodeId id) { return made_[static_cast<std::size_t>(id)]; }

  // Gives the scan its new body, and drops inputs that this no longer reads.
  void settle(NodeId id, std::vector<Tensor>& in, Attrs& attrs) {
    ScanAttrs now = attrs.as<ScanAttrs>();
    const Body& body = *attrs.as<ScanAttrs>().body;
    Settled& scan = scans_[id];
    std::vector<NodeId> inputs(static_cast<std::size_t>(body.inputs())), outputs = body.outs;
    std::iota(inputs.begin(), inputs.end(), 0);
    for (const auto& stacked : scan.now) outputs.push_back(stacked.first);
    const Lowered inner = settle_bodies(settled(body.nodes, inputs, outputs, how_), how_);

    const auto first_x = inner.inputs.begin() + body.carries, first_const = first_x + body.xs;
    const auto first_stacked = inner.outputs.begin() + body.carries;
    const Closed closed = close_body(*inner.graph, {.carries = {inner.inputs.begin(), first_x},
                                                    .xs = {first_x, first_const},
                                                    .consts = {first_const, inner.inputs.end()},
                                                    .outs = {inner.outputs.begin(), first_stacked},
                                                    .keep = {first_stacked, inner.outputs.end()},
                                                    .replace = {}});
    scan.body = now.body = closed.body;
    auto kept = closed.keep.begin();
    for (auto& stacked : scan.now) stacked.second = *kept++;
    std::vector<Tensor> left(in.begin(), in.begin() + body.carries);
    for (std::size_t i : closed.live_xs) left.push_back(in[static_cast<std::size_t>(body.carries) + i]);
    for (std::size_t i : closed.live_consts)
      left.push_back(in[static_cast<std::size_t>(body.carries + body.xs) + i]);
    in = std::move(left);
    attrs = now;
  }

  const Lowered& from_;
  const Graph& old_;
  const How& how_;
  std::vector<Tensor> made_;
  std::map<NodeId, Settled> scans_;
};

Lowered settle_bodies(Lowered from, const How& how) {
  for (const Node& n : from.graph->nodes())
    if (n.op->kind == OpKind::scan) return SettleBodies(from, how).run();
  return from;
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
