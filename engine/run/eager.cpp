// Eager graphs (GraphMode::eager): a node is computed when it is appended, and keeps its value.
#include <fmt/format.h>

#include <set>

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

// What is there is read; what is not is run from what it is made of that is there, so that it costs as much as what is run.
std::vector<Array> eval(std::span<const Tensor> ts) {
  if (ts.empty()) return {};
  Graph& g = ts[0].graph();
  std::vector<NodeId> cuts, wanted;
  std::vector<Array> values, out(ts.size());
  std::vector<std::size_t> places;  // of `wanted` among ts
  std::set<NodeId> seen;
  for (std::size_t i = 0; i < ts.size(); ++i) {
    const NodeId id = g.lift(ts[i]);
    if (g.node(id).value.defined()) {
      out[i] = g.node(id).value.clone();
      continue;
    }
    wanted.push_back(id);
    places.push_back(i);
    for (std::vector<NodeId> todo{id}; !todo.empty();) {
      const NodeId at = todo.back();
      todo.pop_back();
      if (!seen.insert(at).second) continue;
      const GraphNode& node = g.node(at);
      if (node.value.defined()) cuts.push_back(at), values.push_back(node.value);
      else todo.insert(todo.end(), node.inputs.begin(), node.inputs.end());
    }
  }
  if (wanted.empty()) return out;
  for (const NodeId id : wanted) check_has_numbers(g, id, cuts);
  std::vector<Array> made = Plan(g.nodes(), cuts, wanted, {}).run(values);
  for (std::size_t i = 0; i < wanted.size(); ++i) out[places[i]] = std::move(made[i]);
  return out;
}

Array eval(Tensor t) { return eval(std::span<const Tensor>(&t, 1)).at(0); }

}  // namespace nestgrad
