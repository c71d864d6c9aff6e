// Eager graphs (Mode::eager): a node is computed when it is appended, and keeps its value.
#include <fmt/format.h>

#include "engine/core/body.h"
#include "engine/run/function.h"

namespace nestgrad {

void Graph::run(Node& node) {
  if (node.op->kind == OpKind::constant) {
    node.value = literal_of(node);
    return;
  }
  if (is_scan(node)) return;  // its values are read through final and stack
  std::vector<const std::byte*> in;
  for (NodeId id : node.inputs) in.push_back(this->node(id).value.data());
  if (node.op->cpu) {
    node.value = Array(node.spec);
    node.op->cpu(NodeCall(nodes_, node))(in.data(), node.value.data());
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
  for (const Tensor& t : ts) wanted.push_back(g.lift(t));
  return Plan(g.nodes(), cuts, wanted, {}).run(values);
}

Array eval(Tensor t) { return eval(std::span<const Tensor>(&t, 1)).at(0); }

}  // namespace nestgrad
