// Eager graphs (GraphMode::eager): a node is computed when it is appended, and keeps its value.
#include <fmt/format.h>

#include "engine/core/body.h"
#include "engine/core/index.h"
#include "engine/core/node_call.h"
#include "engine/core/node_text.h"
#include "engine/plan/readers.h"
#include "engine/run/function.h"

namespace nestgrad {

namespace {

// GraphError if `wanted` needs an input that has no value; the values of `known` are there.
void check_has_numbers(const Graph& g, NodeId wanted, std::span<const NodeId> known) {
  const std::vector<char> live = live_nodes(g.nodes(), std::span(&wanted, 1), known);
  for (NodeId id = 0; id < g.size(); ++id)
    if (live[uz(id)] && g.node(id).op->kind == OpKind::input && !g.node(id).value.defined())
      throw GraphError(fmt::format(
          "[eval] {} has no numbers yet: {} gets its value when the traced function is called. Inside of a "
          "trace, choose with where(mask, a, b) (or select) and loop with scan(); for numbers, return the "
          "tensor from the trace and call the function",
          describe(g.nodes(), wanted), id == wanted ? "an input" : describe(g.nodes(), id)));
}

}  // namespace

void Graph::run(GraphNode& node) {
  if (node.op->kind == OpKind::constant) {
    node.value = literal_of(node);
    return;
  }
  if (is_scan(node)) return;  // its values are read through final and stack
  std::vector<const std::byte*> in;
  for (NodeId id : node.inputs) {
    const Array& value = this->node(id).value;
    if (!value.defined() && !is_scan(this->node(id))) check_has_numbers(*this, id, {});
    in.push_back(value.data());
  }
  if (node.op->cpu) {
    node.value = Array(node.spec);
    try {
      node.op->cpu(NodeCall(nodes_, node))(in.data(), node.value.data());
    } catch (const ValueError& e) {
      throw value_error(e, nodes_, size() - 1);
    }
  } else {
    node.value = eval(tensor(size() - 1));  // node is the last one
  }
  if (options_.check_finite && first_not_finite(node.value) >= 0)
    throw ValueError(fmt::format("[{}] first value that is not finite, at {}", node.op->name,
                                 describe(tensor(size() - 1))));
}

std::vector<Array> eval(std::span<const Tensor> ts) {
  if (ts.empty()) return {};
  Graph& g = ts[0].graph();
  std::vector<NodeId> cuts, wanted;
  std::vector<Array> values;
  for (NodeId id = 0; id < g.size(); ++id) {
    if (!g.node(id).value.defined()) continue;
    cuts.push_back(id);
    values.push_back(g.node(id).value);
  }
  for (const Tensor& t : ts) {
    wanted.push_back(g.lift(t));
    check_has_numbers(g, wanted.back(), cuts);
  }
  return Plan(g.nodes(), cuts, wanted, {}).run(values);
}

Array eval(Tensor t) { return eval(std::span<const Tensor>(&t, 1)).at(0); }

}  // namespace nestgrad
