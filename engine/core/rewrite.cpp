#include "engine/core/rewrite.h"

#include <algorithm>

#include "engine/core/index.h"

namespace nestgrad {

void label_like(const GraphNode& n) {
  ThreadContext::Emit& state = context().emit;
  state.level = n.level;
  state.vjp_of = {};
  state.region = n.region;
  state.loc = n.loc;
  state.scope = n.scope;
}

Rewriter::Rewriter(const std::deque<GraphNode>& old, GraphOptions options)
    : old_(old), graph_(std::make_shared<Graph>(options)), made_(old.size()) {
  context().emit.graph = graph_.get();
}

std::vector<Tensor> Rewriter::inputs(NodeId old) const {
  std::vector<Tensor> out;
  for (NodeId in : node(old).inputs) out.push_back(made_[uz(in)]);
  return out;
}

Tensor Rewriter::copy(NodeId old, std::span<const Tensor> inputs) {
  const GraphNode& n = node(old);
  if (n.op->kind == OpKind::input) return input(old);
  label_like(n);
  const bool is_alike =
      !replaced(n) && std::ranges::equal(inputs, n.inputs, [&](const Tensor& now, NodeId in) {
        return now.spec() == node(in).spec;
      });
  return graph_->append(*n.op, inputs, attrs(n), n.loc, is_alike ? &n.spec : nullptr);
}

Tensor Rewriter::input(NodeId old) {
  label_like(node(old));
  return graph_->input(node(old).spec, input_name(node(old)));
}

Tensor Rewriter::replace_scan(NodeId old, BodyPtr body, std::span<const Tensor> inputs,
                              std::map<NodeId, NodeId> now) {
  const GraphNode& n = node(old);
  ScanAttrs attrs = n.attrs.as<ScanAttrs>();
  attrs.body = body;
  scans_.insert_or_assign(old, Scan{std::move(body), std::move(now)});
  label_like(n);
  return graph_->append(*n.op, inputs, std::move(attrs), n.loc);
}

Tensor Rewriter::replace_body(NodeId old, const Lowered& body, const std::set<NodeId>& stacked) {
  const GraphBody& before = *node(old).attrs.as<ScanAttrs>().body;
  const auto first_x = body.inputs.begin() + before.carries, first_const = first_x + before.xs;
  const auto first_stacked = body.outputs.begin() + before.carries;
  const Closed closed = close_body(*body.graph, {.carries = {body.inputs.begin(), first_x},
                                                 .xs = {first_x, first_const},
                                                 .consts = {first_const, body.inputs.end()},
                                                 .outs = {body.outputs.begin(), first_stacked},
                                                 .keep = {first_stacked, body.outputs.end()},
                                                 .replace = {}});
  std::map<NodeId, NodeId> now;
  for (auto kept = closed.keep.begin(); const NodeId each : stacked) now.emplace(each, *kept++);
  const std::vector<Tensor> in = inputs(old);
  std::vector<Tensor> left(in.begin(), in.begin() + before.carries);
  for (const std::size_t i : closed.live_xs) left.push_back(in[uz(before.carries) + i]);
  for (const std::size_t i : closed.live_consts) left.push_back(in[uz(before.carries + before.xs) + i]);
  return replace_scan(old, closed.body, left, std::move(now));
}

const Rewriter::Scan* Rewriter::replaced(const GraphNode& old) const {
  const auto scan = old.inputs.empty() ? scans_.end() : scans_.find(old.inputs[0]);
  return scan == scans_.end() ? nullptr : &scan->second;
}

Attrs Rewriter::attrs(const GraphNode& old) const {
  const Scan* scan = replaced(old);
  if (!scan) return old.attrs;
  if (const FinalAttrs* final = old.attrs.find<FinalAttrs>()) return FinalAttrs{scan->body, final->carry};
  const StackAttrs& stack = old.attrs.as<StackAttrs>();
  return StackAttrs{scan->body, scan->now.at(stack.node), stack.steps};
}

Lowered Rewriter::lowered(const std::vector<NodeId>& inputs, const std::vector<NodeId>& outputs) const {
  Lowered out{graph_, {}, {}};
  for (NodeId id : inputs) out.inputs.push_back(made_[uz(id)].id());
  for (NodeId id : outputs) out.outputs.push_back(made_[uz(id)].id());
  return out;
}

}  // namespace nestgrad
