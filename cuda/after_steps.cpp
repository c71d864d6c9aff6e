#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "cuda/passes.h"
#include "engine/core/index.h"
#include "engine/plan/readers.h"
#include "ops/attrs.h"
#include "ops/ops.h"
#include "ops/table.h"

namespace nestgrad::cuda {

namespace {

bool is_elementwise(const GraphNode& n) {
  return n.op->kind == OpKind::input || n.op->kind == OpKind::constant || n.op->is_alias ||
         n.op->element_loop;
}

// What becomes of one scan.
struct Plan {
  std::set<NodeId> stays;  // nodes of the body whose stacks the scan goes on making
  // Of these, those of which somebody reads all steps at once, with their stacks: they are stored, whatever is
  // checkpointed.
  std::map<NodeId, NodeId> kept;
  std::set<NodeId> after;  // those that are made after it
};

// Nothing, if the scan is to be left as it is.
std::optional<Plan> plan_of(const GraphNode& scan, const std::set<NodeId>& shown) {
  const ScanAttrs& attrs = scan.attrs.as<ScanAttrs>();
  const GraphBody& body = *attrs.body;
  if (attrs.steps < 2 || attrs.recomputes || body.carries == 0) return std::nullopt;
  // Do they and all that they need come of elementwise ops?
  const auto elementwise = [&](std::span<const NodeId> wanted) {
    const std::vector<char> needed = live_nodes(body.nodes, wanted, {});
    for (std::size_t i = 0; i < needed.size(); ++i)
      if (needed[i] && !is_elementwise(body.nodes[i])) return false;
    return true;
  };
  if (!elementwise(body.outs)) return std::nullopt;
  Plan plan;
  for (const NodeId what : shown) (elementwise(std::array{what}) ? plan.stays : plan.after).insert(what);
  return plan.after.empty() ? std::nullopt : std::optional(plan);
}

class ComputeAfterSteps {
 public:
  explicit ComputeAfterSteps(const Lowered& from)
      : from_(from),
        old_(*from.graph),
        to_(old_.nodes()),
        live_(live_nodes(old_.nodes(), from.outputs, from.inputs)),
        readers_(readers_of(old_, live_, from.outputs)) {
    for (const NodeId id : from.inputs) live_[uz(id)] = 1;
    std::map<NodeId, std::set<NodeId>> shown;
    std::map<NodeId, std::map<NodeId, NodeId>> stored;
    for (NodeId id = 0; id < old_.size(); ++id)
      if (const StackAttrs* stack = old_.node(id).attrs.find<StackAttrs>(); stack && live_[uz(id)]) {
        shown[old_.node(id).inputs[0]].insert(stack->node);
        if (is_stored(id)) stored[old_.node(id).inputs[0]].emplace(stack->node, id);
      }
    for (NodeId id = 0; id < old_.size(); ++id) {
      if (!live_[uz(id)] || !is_scan(old_.node(id))) continue;
      std::optional<Plan> plan = plan_of(old_.node(id), shown[id]);
      if (!plan) continue;
      for (const auto& each : stored[id])
        if (plan->stays.contains(each.first)) plan->kept.insert(each);
      if (can_be_made(old_.node(id), *plan)) scans_.emplace(id, Scan{std::move(*plan)});
    }
  }

  bool is_needed() const { return !scans_.empty(); }

  Lowered run() {
    for (NodeId id = 0; id < old_.size(); ++id) {
      if (!live_[uz(id)]) continue;
      const GraphNode& n = old_.node(id);
      const StackAttrs* stack = n.attrs.find<StackAttrs>();
      const auto scan = stack ? scans_.find(n.inputs[0]) : scans_.find(id);
      if (scan == scans_.end()) to_[id] = to_.copy(id);
      else if (!stack) to_[id] = without_what_comes_after(id, scan->second.plan);
      else if (scan->second.plan.after.contains(stack->node))
        to_[id] = of_each_step(value_of_steps(scan->first, stack->node), n);
      else copy_of_stack(id);
    }
    return to_.lowered(from_.inputs, from_.outputs);
  }

 private:
  // A value of a scan's body: of all steps [steps, ..], or one that is the same at all of them.
  struct Value {
    Tensor tensor;
    bool of_steps = false;
  };
  struct Scan {
    Plan plan;
    std::map<NodeId, Value> values = {};  // by nodes of its body
  };

  // What scans read step by step alone may be computed again for them instead.
  bool is_stored(NodeId id) const {
    return old_.node(id).op->kind != OpKind::stack ||
           !std::ranges::all_of(readers_[uz(id)],
                                [&](const Reader& r) { return reads_step_by_step(old_, r); });
  }

  static bool has_rule(const Op& op) {
    return op.element_loop || &op == &sum_op || &op == &max_over_op || &op == &reshape_op ||
           &op == &broadcast_op;
  }

  // Can what comes after be made of stacks and sequences that are stored, and of what is the same at all steps?
  bool can_be_made(const GraphNode& scan, const Plan& plan) const {
    const GraphBody& body = body_of(scan);
    std::vector<char> seen(body.nodes.size(), 0);
    std::vector<NodeId> open(plan.after.begin(), plan.after.end());
    while (!open.empty()) {
      const NodeId id = open.back();
      open.pop_back();
      if (std::exchange(seen[uz(id)], 1) || plan.kept.contains(id)) continue;
      const GraphNode& n = body.nodes[uz(id)];
      if (id < body.carries) return false;  // of which nobody keeps each step's
      if (id < body.carries + body.xs && !is_stored(scan.inputs[uz(id)])) return false;
      if (id < body.inputs() || n.op->kind == OpKind::constant) continue;
      if (!has_rule(*n.op)) return false;
      open.insert(open.end(), n.inputs.begin(), n.inputs.end());
    }
    return true;
  }

  Tensor without_what_comes_after(NodeId id, const Plan& plan) {
    const GraphBody& body = body_of(old_.node(id));
    std::vector<NodeId> inputs(uz(body.inputs())), outputs = body.outs;
    std::iota(inputs.begin(), inputs.end(), 0);
    outputs.insert(outputs.end(), plan.stays.begin(), plan.stays.end());
    Rewriter inner(body.nodes);
    for (NodeId i = 0; i < static_cast<NodeId>(body.nodes.size()); ++i) inner[i] = inner.copy(i);
    return to_.replace_body(id, inner.lowered(inputs, outputs), plan.stays);
  }

  // A stack that the scan goes on making; what comes after may be made before its turn.
  Tensor copy_of_stack(NodeId id) {
    if (!to_[id].defined()) to_[id] = to_.copy(id);
    return to_[id];
  }

  Value value_of_steps(NodeId scan, NodeId what) {
    Scan& of = scans_.at(scan);
    if (const auto known = of.values.find(what); known != of.values.end()) return known->second;
    const Value made = make(scan, what);
    of.values.emplace(what, made);
    return made;
  }

  Value make(NodeId scan, NodeId what) {
    const GraphBody& body = body_of(old_.node(scan));
    const GraphNode& n = body.nodes[uz(what)];
    const std::map<NodeId, NodeId>& kept = scans_.at(scan).plan.kept;
    if (const auto stack = kept.find(what); stack != kept.end()) return {copy_of_stack(stack->second), true};
    if (what < body.inputs()) return {to_[old_.node(scan).inputs[uz(what)]], what < body.carries + body.xs};
    std::vector<Value> in;
    for (const NodeId i : n.inputs) in.push_back(value_of_steps(scan, i));
    const bool of_steps = std::ranges::any_of(in, [](const Value& v) { return v.of_steps; });
    label_like(n);
    std::vector<Tensor> operands;
    for (const Value& v : in)
      operands.push_back(v.of_steps && n.op->element_loop != nullptr ? with_rank(v.tensor, n.spec.rank() + 1)
                                                                     : v.tensor);
    Attrs attrs = n.attrs;
    if (const std::int64_t steps = old_.node(scan).attrs.as<ScanAttrs>().steps; of_steps) {
      if (const ReduceAttrs* reduced = n.attrs.find<ReduceAttrs>()) {
        Shape axes = reduced->axes;
        for (std::int64_t& axis : axes) ++axis;
        attrs = ReduceAttrs{axes};
      } else if (const ShapeAttrs* shaped = n.attrs.find<ShapeAttrs>()) {
        Shape shape = shaped->shape;
        if (n.op == &broadcast_op) operands[0] = with_rank(operands[0], n.spec.rank() + 1);
        shape.insert(shape.begin(), steps);
        attrs = ShapeAttrs{shape};
      }
    }
    return {to_.graph().append(*n.op, operands, attrs, n.loc), of_steps};
  }

  // What is the same at all steps, once for each.
  static Tensor of_each_step(const Value& value, const GraphNode& stack) {
    return value.of_steps ? value.tensor : broadcast_to(value.tensor, stack.spec.shape);
  }

  // [steps, ..] with axes of one behind the first.
  static Tensor with_rank(Tensor t, int rank) {
    Shape shape = t.shape();
    shape.insert(shape.begin() + 1, uz(rank) - shape.size(), 1);
    return reshape(t, shape);
  }

  const Lowered& from_;
  const Graph& old_;
  Rewriter to_;
  std::vector<char> live_;
  Readers readers_;
  std::map<NodeId, Scan> scans_;  // those that change, by their old ids
};

}  // namespace

Lowered compute_after_steps(const Lowered& from) {
  ComputeAfterSteps pass(from);
  return pass.is_needed() ? pass.run() : from;
}

}  // namespace nestgrad::cuda
