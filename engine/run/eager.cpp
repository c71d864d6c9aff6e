// Eager graphs (GraphMode::eager): a node is computed when it is appended, and keeps its value.
#include <fmt/format.h>

#include <set>

#include "engine/core/body.h"
#include "engine/core/index.h"
#include "engine/core/node_call.h"
#include "engine/core/node_text.h"
#include "engine/run/function.h"

namespace nestgrad {

namespace {

// The nearest nodes that have values, of what `wanted` is made of: a plan of the rest starts at them. GraphError if it needs an
// input that has none.
std::vector<NodeId> valued_before(const Graph& g, std::span<const NodeId> wanted) {
  std::vector<NodeId> out;
  std::set<NodeId> seen;
  for (const NodeId end : wanted)
    for (std::vector<NodeId> todo{end}; !todo.empty();) {
      const NodeId id = todo.back();
      todo.pop_back();
      if (!seen.insert(id).second) continue;
      const GraphNode& node = g.node(id);
      if (node.value.defined()) {
        out.push_back(id);
        continue;
      }
      if (node.op->kind == OpKind::input)
        throw GraphError(fmt::format(
            "[eval] {} has no numbers yet: {} gets its value when the traced function is called. Inside of a "
            "trace, choose with where(mask, a, b) (or select) and loop with scan(); for numbers, return the "
            "tensor from the trace and call the function",
            describe(g.nodes(), end), id == end ? "an input" : describe(g.nodes(), id)));
      todo.insert(todo.end(), node.inputs.rbegin(), node.inputs.rend());  // the first input first
    }
  return out;
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
    if (!value.defined() && !is_scan(this->node(id))) valued_before(*this, std::span(&id, 1));
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
  std::vector<Array> out(ts.size()), values;
  std::vector<NodeId> wanted;
  std::vector<std::size_t> places;  // of `wanted` among ts
  for (std::size_t i = 0; i < ts.size(); ++i) {
    const NodeId id = g.lift(ts[i]);
    if (const Array& value = g.node(id).value; value.defined()) out[i] = value.clone();
    else wanted.push_back(id), places.push_back(i);
  }
  if (wanted.empty()) return out;
  const std::vector<NodeId> cuts = valued_before(g, wanted);
  for (const NodeId id : cuts) values.push_back(g.node(id).value);
  std::vector<Array> made = Plan(g.nodes(), cuts, wanted, {}).run(values);
  for (std::size_t i = 0; i < wanted.size(); ++i) out[places[i]] = std::move(made[i]);
  return out;
}

Array eval(Tensor t) { return eval(std::span<const Tensor>(&t, 1)).at(0); }

}  // namespace nestgrad
