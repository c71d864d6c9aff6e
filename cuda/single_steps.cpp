#include <map>

#include "cuda/passes.h"
#include "engine/core/index.h"
#include "ops/ops.h"

namespace nestgrad::cuda {

namespace {

bool is_single_step(const GraphNode& n) {
  const ScanAttrs* scan = n.attrs.find<ScanAttrs>();
  return scan && scan->steps == 1 && !scan->recomputes;
}

// The values of the body's nodes, as nodes of the new graph; region: the checkpoint region that all of them are in, those of
// regions in the body too. 0: none; regions in the body are then regions of their own each time that it is inlined.
std::vector<Tensor> values_of_body(Rewriter& to, const GraphNode& scan, const std::vector<Tensor>& inputs,
                                   int region) {
  const GraphBody& body = body_of(scan);
  std::map<int, int> regions;
  const auto region_of = [&](int in_body) {
    if (region != 0 || in_body == 0) return region;
    const auto [at, is_new] = regions.try_emplace(in_body);
    if (is_new) at->second = new_region();
    return at->second;
  };
  std::vector<Tensor> made;
  for (NodeId id = 0; id < static_cast<NodeId>(body.nodes.size()); ++id) {
    const GraphNode& n = body.nodes[uz(id)];
    if (id < body.inputs()) {
      const bool is_x = id >= body.carries && id < body.carries + body.xs;
      label_like(scan);
      made.push_back(is_x ? reshape(inputs[uz(id)], n.spec.shape) : inputs[uz(id)]);
      continue;
    }
    std::vector<Tensor> in;
    for (NodeId i : n.inputs) in.push_back(made[uz(i)]);
    label_like(n);
    context().emit.region = region_of(n.region);
    made.push_back(to.graph().append(*n.op, in, n.attrs, n.loc, &n.spec));
  }
  return made;
}

}  // namespace

Lowered inline_single_steps(const Lowered& from, const ScanTest& stays, std::optional<int> checkpoint_every) {
  const Graph& old = *from.graph;
  std::map<NodeId, std::vector<Tensor>> values;  // of scans that are inlined
  for (NodeId id = 0; id < old.size(); ++id)
    if (is_single_step(old.node(id)) && !stays(from, id)) values.emplace(id, 0);
  if (values.empty()) return from;
  Rewriter to(old.nodes());
  for (NodeId id = 0; id < old.size(); ++id) {
    const GraphNode& n = old.node(id);
    const auto shown = n.inputs.empty() ? values.end() : values.find(n.inputs[0]);
    if (const auto scan = values.find(id); scan != values.end()) {
      const bool is_recomputed = checkpoint_every.value_or(n.attrs.as<ScanAttrs>().every) != 0;
      scan->second = values_of_body(to, n, to.inputs(id), is_recomputed ? new_region() : 0);
    } else if (const FinalAttrs* final = n.attrs.find<FinalAttrs>(); final && shown != values.end()) {
      to[id] = shown->second[uz(body_of(old.node(n.inputs[0])).outs[uz(final->carry)])];
    } else if (const StackAttrs* stack = n.attrs.find<StackAttrs>(); stack && shown != values.end()) {
      label_like(n);
      to[id] = reshape(shown->second[uz(stack->node)], n.spec.shape);
    } else {
      to[id] = to.copy(id);
    }
  }
  return to.lowered(from.inputs, from.outputs);
}

}  // namespace nestgrad::cuda
