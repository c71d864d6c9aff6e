#include "engine/plan/liveness.h"

#include "engine/core/index.h"

namespace nestgrad {

Live::Scan live_in_body(const GraphBody& body, std::vector<char> carries, std::vector<NodeId> stacks) {
  for (;;) {
    std::vector<NodeId> wanted = stacks;
    for (std::size_t i = 0; i < carries.size(); ++i)
      if (carries[i]) wanted.push_back(body.outs[i]);
    auto live = std::make_shared<Live>(liveness(body.nodes, wanted));
    bool grew = false;
    for (std::size_t i = 0; i < carries.size(); ++i)
      if (live->nodes[i] && !carries[i]) carries[i] = grew = true;
    if (!grew) return {std::move(live), std::move(carries), std::move(stacks)};
  }
}

NodeId shown_by(const GraphNode& projection) {
  if (const StackAttrs* stack = projection.attrs.find<StackAttrs>()) return stack->node;
  const FinalAttrs& final = projection.attrs.as<FinalAttrs>();
  return final.body->outs[uz(final.carry)];
}

Live liveness(const std::deque<GraphNode>& nodes, std::span<const NodeId> wanted) {
  struct Read {
    std::vector<char> carries;
    std::vector<NodeId> stacks;
  };
  Live out{std::vector<char>(nodes.size(), 0), {}};
  for (NodeId id : wanted) out.nodes[uz(id)] = 1;
  std::map<NodeId, Read> read;
  for (std::size_t id = nodes.size(); id-- > 0;) {
    if (!out.nodes[id]) continue;
    const GraphNode& n = nodes[id];
    if (is_scan(n)) {
      Read& r = read[static_cast<NodeId>(id)];
      const GraphBody& body = body_of(n);
      r.carries.resize(uz(body.carries));
      Live::Scan scan = live_in_body(body, std::move(r.carries), std::move(r.stacks));
      for (std::size_t i = 0; i < n.inputs.size(); ++i)
        if (scan.body->nodes[i]) out.nodes[uz(n.inputs[i])] = 1;
      out.scans.emplace(static_cast<NodeId>(id), std::move(scan));
      continue;
    }
    for (NodeId in : n.inputs) out.nodes[uz(in)] = 1;
    if (const FinalAttrs* final = n.attrs.find<FinalAttrs>()) {
      Read& r = read[n.inputs[0]];
      r.carries.resize(uz(final->body->carries));
      r.carries[uz(final->carry)] = 1;
    } else if (n.attrs.find<StackAttrs>()) {
      read[n.inputs[0]].stacks.push_back(shown_by(n));
    }
  }
  return out;
}

}  // namespace nestgrad
