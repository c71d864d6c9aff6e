#include "ttt/forms/linear.h"

#include "engine/core/node_call.h"
#include "ops/accumulate.h"
#include "ops/ops.h"
#include "ops/rules.h"
#include "ttt/trace.h"

namespace nestgrad::ttt {

bool is_elementwise(const Op& op, const Spec& first_input, const Spec& output) {
  if (&op == &matmul_op || &op == &broadcast_op) return false;
  return op.is_alias ? first_input == output : op.broadcasts;
}

void LinearFollower::start(NodeId node, std::size_t source, Tensor one) {
  std::vector<Tensor> terms(sources_);
  terms[source] = one;
  terms_[node] = std::move(terms);
}

bool LinearFollower::visit(NodeId node) {
  const GraphNode n = graph_.node(node);  // a copy: rules append nodes
  std::vector<std::size_t> moving;
  for (std::size_t i = 0; i < n.inputs.size(); ++i)
    if (follows(n.inputs[i])) moving.push_back(i);
  if (moving.empty()) return false;
  const NodeCall call(graph_.nodes(), n);
  if (n.op == &broadcast_op && call.in(0) == n.spec) {
    terms_[node] = terms(n.inputs[0]);
    return true;
  }
  std::vector<Tensor> in;
  for (NodeId i : n.inputs) {
    in.push_back(rules_.operand(i));
    if (!in.back().defined()) rules_.refuse(node, Why::foreign);
  }
  if (!is_elementwise(*n.op, call.in(0), n.spec)) rules_.refuse(node, Why::mixed);
  for (std::size_t i : moving)
    if (!n.op->vjp || !n.op->linear_in || !n.op->linear_in(call, static_cast<int>(i)))
      rules_.refuse(node, Why::nonlinear);
  check_rule(node, n);
  std::vector<Tensor> out(sources_);
  terms_[node] = out;  // so that it stands for itself as an operand
  const Tensor here = rules_.operand(node);
  for (std::size_t i : moving)
    for (std::size_t source = 0; source < sources_; ++source) {
      const Tensor factor = terms(n.inputs[i])[source];
      if (!factor.defined()) continue;
      const Tensor part = n.op->vjp({in, here, factor, n.attrs, static_cast<int>(i)});
      accumulate(out[source], part);
    }
  terms_[node] = std::move(out);
  return true;
}

// The rule of an operand that follows a source must mention no other that does. Without offsets it must
// mention every operand that does not: each is then a factor. (It never mentions the output: the operand is
// linear.)
void LinearFollower::check_rule(NodeId node, const GraphNode& n) {
  Graph scratch;
  const GraphScope scope(scratch);
  std::vector<Tensor> in;
  for (NodeId i : n.inputs) in.push_back(scratch.input(graph_.node(i).spec));
  const Tensor y = scratch.input(n.spec), ct = scratch.input(n.spec);
  for (std::size_t i = 0; i < n.inputs.size(); ++i) {
    if (!follows(n.inputs[i])) continue;
    const Tensor d = n.op->vjp({in, y, ct, n.attrs, static_cast<int>(i)});
    for (std::size_t k = 0; k < n.inputs.size(); ++k) {
      const bool mentioned = mentions(d, in[k]), state = follows(n.inputs[k]);
      if (state && mentioned) rules_.refuse(node, Why::product);
      if (!state && !mentioned && !rules_.offsets) rules_.refuse(node, Why::offset);
    }
  }
}

Tensor linear_factor(Tensor y, Tensor x,
                     const std::function<void(Tensor at, const std::string& why)>& refuse) {
  if (!mentions(y, x)) return {};
  using Why = LinearFollower::Why;
  Graph& graph = x.graph();
  LinearFollower follower(graph, 1,
                          {.operand = [&](NodeId id) { return graph.tensor(id); },
                           .offsets = true,
                           .refuse =
                               [&](NodeId id, Why why) {
                                 refuse(graph.tensor(id),
                                        why == Why::mixed ? "elements are mixed"
                                        : why == Why::product
                                            ? "it multiplies two values that depend on the weight"
                                            : "it is a nonlinear function");
                               }});
  follower.start(x.id(), 0, constant(1.0, x.dtype()));
  for (NodeId id = x.id() + 1; id <= y.id(); ++id)
    if (mentions(y, graph.tensor(id))) follower.visit(id);
  return follower.terms(y.id())[0];
}

}  // namespace nestgrad::ttt
