#include "engine/plan/dependence.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "engine/core/index.h"
#include "engine/plan/liveness.h"

namespace nestgrad {

std::string_view why_no_derivative(const GraphNode& n, std::size_t input, const GraphNode& source) {
  if (!n.op->vjp) return n.op->why_no_derivative.empty() ? "it has no derivative" : n.op->why_no_derivative;
  if (n.op->why_no_derivative_in)
    if (const std::string_view why = n.op->why_no_derivative_in(static_cast<int>(input)); !why.empty())
      return why;
  return is_float(n.spec.dtype) && is_float(source.spec.dtype) ? "" : "integers have no derivative";
}

std::vector<char> marked_inputs(const GraphNode& scan, const std::vector<char>& marked) {
  std::vector<char> in;
  for (NodeId id : scan.inputs) in.push_back(marked[uz(id)]);
  return in;
}

std::vector<char> dependents(const std::deque<GraphNode>& nodes, std::vector<char> marked, Follow follow,
                             NodeId first) {
  std::unordered_map<NodeId, std::vector<char>> bodies;
  const auto mark_of = [&](NodeId id) { return id < first ? char{0} : marked[uz(id - first)]; };
  const char most = follow == Follow::cuts ? kCut : 1;
  for (std::size_t at = 0; at < marked.size(); ++at) {
    const NodeId id = first + static_cast<NodeId>(at);
    const GraphNode& n = nodes[uz(id)];
    if (marked[at] || n.inputs.empty()) continue;
    switch (n.op->kind) {
      case OpKind::input:
      case OpKind::constant:
        break;
      case OpKind::value:
        for (std::size_t i = 0; i < n.inputs.size() && marked[at] < most; ++i) {
          const char mark = mark_of(n.inputs[i]);
          if (mark == 0) continue;
          if (follow == Follow::values || passes(n, i, nodes[uz(n.inputs[i])]))
            marked[at] = std::max(marked[at], mark);
          else if (follow == Follow::cuts) marked[at] = kCut;
        }
        break;
      case OpKind::scan: {
        std::vector<char> in;
        for (NodeId input : n.inputs) in.push_back(mark_of(input));
        marked[at] = std::ranges::max(in);
        if (marked[at]) bodies.emplace(id, active_in_body(body_of(n), in, follow));
        break;
      }
      case OpKind::final:
      case OpKind::stack:
        if (const auto body = bodies.find(n.inputs[0]); body != bodies.end())
          marked[at] = body->second[uz(shown_by(n))];
        break;
    }
  }
  return marked;
}

std::vector<char> dependents_over_steps(const std::deque<GraphNode>& nodes, std::vector<char> marked,
                                        const std::vector<NodeId>& carries, const std::vector<NodeId>& nexts,
                                        Follow follow) {
  for (;;) {
    std::vector<char> found = dependents(nodes, marked, follow);
    bool grew = false;
    for (std::size_t k = 0; k < carries.size(); ++k)
      if (found[uz(nexts[k])] > marked[uz(carries[k])])
        marked[uz(carries[k])] = found[uz(nexts[k])], grew = true;
    if (!grew) return found;
  }
}

std::vector<char> active_in_body(const GraphBody& body, const std::vector<char>& marked_inputs,
                                 Follow follow) {
  std::vector<char> marked(body.nodes.size(), 0);
  std::ranges::copy(marked_inputs, marked.begin());
  std::vector<NodeId> carries(uz(body.carries));
  std::iota(carries.begin(), carries.end(), 0);
  return dependents_over_steps(body.nodes, std::move(marked), carries, body.outs, follow);
}

}  // namespace nestgrad
