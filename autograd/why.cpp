#include "autograd/why.h"

#include <fmt/format.h>

#include "engine/core/index.h"
#include "engine/plan/dependence.h"
#include "engine/plan/liveness.h"

namespace nestgrad {

namespace {

std::string advice_for(const GraphNode& n, const GraphNode& source) {
  if (!is_float(source.spec.dtype))
    return "An integer chooses, it does not vary: differentiate with respect to the floating values that it "
           "chooses from, or that it was made of before it was rounded";
  if (!is_float(n.spec.dtype))
    return "Stay in a floating type on this way (cast between f32 and f64 "
           "keeps derivatives), or use a smooth op in place of the choice: "
           "softmax for a largest element, sigmoid for a threshold";
  if (n.op->vjp)
    return "Let the dependence come in through an "
           "operand that has a derivative, or give "
           "the whole expression one with custom_vjp";
  if (n.op->is_alias)
    return "Remove it if the derivative is wanted; to hold a fast weight in the inner gradient alone, use "
           "Weights::held, which the outer gradient passes";
  return "Use an op that has a derivative, a smooth one in place of a step (sigmoid, tanh), or give this one "
         "a derivative of your own with custom_vjp";
}

// Adds the cuts among the nodes that are `live`; `reached` are those that depend differentiably on x.
void find_cuts(const std::deque<GraphNode>& nodes, const Live& live, const std::vector<char>& reached,
               bool in_scan, std::vector<Disconnection::Cut>& cuts) {
  for (std::size_t id = 0; id < nodes.size(); ++id) {
    if (!live.nodes[id]) continue;
    const GraphNode& n = nodes[id];
    if (is_scan(n)) {
      find_cuts(body_of(n).nodes, *live.scans.at(static_cast<NodeId>(id)).body,
                active_in_body(body_of(n), marked_inputs(n, reached)), true, cuts);
    }
    if (n.op->kind != OpKind::value) continue;
    for (std::size_t i = 0; i < n.inputs.size(); ++i) {
      const GraphNode& source = nodes[uz(n.inputs[i])];
      if (!reached[uz(n.inputs[i])] || passes(n, i, source)) continue;
      cuts.push_back({static_cast<NodeId>(id), std::string(n.op->name), n.spec, n.level, n.loc, in_scan,
                      std::string(why_no_derivative(n, i, source)), advice_for(n, source)});
      break;
    }
  }
}

Disconnection disconnection(Tensor y, NodeId x) {
  const Graph& g = y.graph();
  const Live live = liveness(g.nodes(), std::vector{y.id()});
  Disconnection out;
  out.meets = live.nodes[uz(x)];
  if (!out.meets) return out;
  std::vector<char> reached(static_cast<std::size_t>(g.size()), 0);
  reached[uz(x)] = 1;
  reached = dependents(g.nodes(), std::move(reached));
  out.connected = reached[uz(y.id())] && is_float(y.dtype()) && is_float(g.node(x).spec.dtype);
  find_cuts(g.nodes(), live, reached, false, out.cuts);
  return out;
}

std::string text_of(const Disconnection::Cut& cut) {
  return fmt::format("{}%{} = {} {} ({}): {}", cut.in_scan ? "(in a scan) " : "", cut.node, cut.op,
                     to_string(cut.spec), describe(cut.loc), cut.why);
}

}  // namespace

std::string where_cut(Tensor y, NodeId x) {
  constexpr std::size_t kEnough = 400;  // characters
  const Disconnection d = disconnection(y, x);
  if (!d.meets) return "x never meets y";
  std::string text;
  for (const Disconnection::Cut& cut : d.cuts) {
    if (text.size() > kEnough) return fmt::format("the path is cut at {}; and elsewhere", text);
    text += (text.empty() ? "" : "; ") + text_of(cut);
  }
  return text.empty() ? "no derivative passes" : "the path is cut at " + text;
}

Disconnection why_disconnected(Tensor y, Tensor x) {
  if (&y.graph() != &x.graph())
    throw GraphError(fmt::format(
        "[why_disconnected] y = {} and x = {} are of different graphs; ask where both are, inside "
        "of one trace or scan body",
        describe(y), describe(x)));
  Disconnection out = disconnection(y, x.id());
  out.y = describe(y);
  out.x = describe(x);
  return out;
}

std::string Disconnection::str() const {
  std::string out = fmt::format("y = {} {} x = {}", y, connected ? "depends on" : "does not depend on", x);
  if (!meets)
    return out +
           ": y is not made of x. Compute y from x itself: an input, a number or a tensor of the same value "
           "is another variable, and so is what eval() gave.\n";
  if (connected && cuts.empty()) return out + ", and no path is cut.\n";
  out += connected ? ". Some paths are cut all the same:\n" : " differentiably: every path is cut.\n";
  for (const Cut& cut : cuts) out += fmt::format("  {}. {}.\n", text_of(cut), cut.advice);
  return out;
}

}  // namespace nestgrad
