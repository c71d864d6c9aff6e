#include "ttt/forms/affine.h"

#include <map>

#include "ops/ops.h"
#include "ops/rules.h"
#include "ttt/trace.h"

namespace nestgrad::ttt {

bool is_elementwise(const Op& op, const Spec& first_input, const Spec& output) {
  if (&op == &matmul_op || &op == &broadcast_op) return false;
  return op.alias ? first_input == output : op.broadcasts;
}

Tensor linear_factor(Tensor y, Tensor x,
                     const std::function<void(Tensor at, const std::string& why)>& refuse) {
  if (!mentions(y, x)) return {};
  Graph& graph = x.graph();
  std::map<NodeId, Tensor> factors{{x.id(), constant(1.0, x.dtype())}};
  for (NodeId id = x.id() + 1; id <= y.id(); ++id) {
    const Node n = graph.node(id);  // a copy: rules append nodes
    std::vector<std::size_t> moving;
    for (std::size_t i = 0; i < n.inputs.size(); ++i)
      if (factors.contains(n.inputs[i])) moving.push_back(i);
    if (moving.empty() || !mentions(y, graph.tensor(id))) continue;
    const Tensor here = graph.tensor(id);
    const NodeCall call(graph.nodes(), n);
    std::vector<Tensor> in;
    for (NodeId i : n.inputs) in.push_back(graph.tensor(i));
    if (n.op == &broadcast_op && call.in(0) == n.spec) {
      factors[id] = factors[n.inputs[0]];
      continue;
    }
    if (!is_elementwise(*n.op, call.in(0), n.spec)) refuse(here, "elements are mixed");
    Tensor sum;
    for (std::size_t i : moving) {
      if (!n.op->vjp || !n.op->linear_in || !n.op->linear_in(call, static_cast<int>(i)))
        refuse(here, "it is a nonlinear function");
      const Tensor part = n.op->vjp({in, here, factors[n.inputs[i]], n.attrs, static_cast<int>(i)});
      if (mentions(part, x)) refuse(here, "it multiplies two values that depend on the weight");
      sum = sum.defined() ? sum + part : part;
    }
    factors[id] = sum;
  }
  return factors.at(y.id());
}

}  // namespace nestgrad::ttt
