#include <algorithm>

#include "cuda/passes.h"
#include "engine/core/index.h"
#include "ops/attrs.h"
#include "ops/table.h"

namespace nestgrad::cuda {

namespace {

// Rows that are shorter would not be worth a group of threads each.
constexpr std::int64_t kLeastRow = 32;

bool is_of_rows_and_more(const Graph& graph, const GraphNode& n) {
  if (n.op != &sum_op && n.op != &max_over_op) return false;
  const GraphNode& in = graph.node(n.inputs[0]);
  const Shape& axes = n.attrs.as<ReduceAttrs>().axes;
  return in.op->element_loop != nullptr && axes.size() > 1 && axes.back() == in.spec.rank() - 1 &&
         in.spec.shape.back() >= kLeastRow && in.spec.size() > in.spec.shape.back() * n.spec.size();
}

}  // namespace

Lowered reduce_rows_first(const Lowered& from) {
  const Graph& old = *from.graph;
  if (std::ranges::none_of(old.nodes(), [&](const GraphNode& n) { return is_of_rows_and_more(old, n); }))
    return from;
  Rewriter to(old.nodes());
  for (NodeId id = 0; id < old.size(); ++id) {
    const GraphNode& n = old.node(id);
    if (!is_of_rows_and_more(old, n)) {
      to[id] = to.copy(id);
      continue;
    }
    label_like(n);
    Shape axes = n.attrs.as<ReduceAttrs>().axes;
    const Tensor rows = to.graph().append(*n.op, to.inputs(id), ReduceAttrs{{axes.back()}}, n.loc);
    axes.pop_back();
    to[id] = to.graph().append(*n.op, std::vector{rows}, ReduceAttrs{axes}, n.loc);
  }
  return to.lowered(from.inputs, from.outputs);
}

}  // namespace nestgrad::cuda
