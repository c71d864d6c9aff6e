#include "engine/plan/readers.h"

#include <algorithm>
#include <utility>

#include "engine/core/index.h"
#include "engine/core/node_call.h"

namespace nestgrad {

std::vector<char> live_nodes(const std::deque<GraphNode>& nodes, std::span<const NodeId> wanted,
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

namespace {

NodeId root_of(const std::deque<GraphNode>& nodes, NodeId id) {
  while (nodes[uz(id)].op->is_alias) id = nodes[uz(id)].inputs[0];
  return id;
}

class WayBack {
 public:
  WayBack(const std::deque<GraphNode>& nodes, NodeId to) : nodes_(nodes), to_(to) {}
  // Does a way lead from this value to `to`? It is added to `way`.
  bool find(NodeId id, std::vector<NodeId>& way) {
    id = root_of(nodes_, id);
    if (id == to_) return !way.empty();
    const GraphNode& n = nodes_[uz(id)];
    if (n.op->kind != OpKind::value || ++visited_ > kMost) return false;
    way.push_back(id);
    const NodeCall call(nodes_, n);
    for (std::size_t i = 0; i < n.inputs.size(); ++i) {
      const bool over_it =
          n.op->is_addition || (n.op->may_reuse && n.op->may_reuse(call, static_cast<int>(i)));
      if (over_it && nodes_[uz(n.inputs[i])].spec == n.spec && find(n.inputs[i], way)) return true;
    }
    way.pop_back();
    return false;
  }

 private:
  static constexpr int kMost = 64;  // values that are looked at
  const std::deque<GraphNode>& nodes_;
  NodeId to_;
  int visited_ = 0;
};

}  // namespace

NodeId root_of_alias(const Graph& graph, NodeId id) { return root_of(graph.nodes(), id); }

std::vector<NodeId> written_over(const std::deque<GraphNode>& nodes, NodeId to, NodeId node) {
  std::vector<NodeId> way;
  WayBack(nodes, to).find(node, way);
  return way;
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
  if (reader.id < 0 || !is_scan(graph.node(reader.id))) return false;
  const GraphBody& body = body_of(graph.node(reader.id));
  return reader.operand >= body.carries && reader.operand < body.carries + body.xs;
}

bool all_read_step_by_step(const Graph& graph, const std::vector<Reader>& readers) {
  return !readers.empty() &&
         std::ranges::all_of(readers, [&](const Reader& r) { return reads_step_by_step(graph, r); });
}

bool begins_segments(const Graph& graph, const Reader& reader) {
  if (reader.id < 0 || !is_scan(graph.node(reader.id))) return false;
  const ScanAttrs& scan = graph.node(reader.id).attrs.as<ScanAttrs>();
  return scan.recomputes && reader.operand < scan.body->carries;
}

ScanResults results_of(const Graph& graph, const Readers& readers, NodeId scan) {
  ScanResults out;
  for (const Reader& r : readers[uz(scan)]) {
    if (r.id < 0) continue;
    if (graph.node(r.id).attrs.find<FinalAttrs>()) out.finals.push_back(r.id);
    if (graph.node(r.id).attrs.find<StackAttrs>()) out.stacks.push_back(r.id);
  }
  return out;
}

}  // namespace nestgrad
