#include "autograd/dependence.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "engine/lower.h"

namespace nestgrad {

namespace {

// The body node whose value a projection of a scan shows.
NodeId body_node(const Node& projection) {
  const auto i = projection.attrs.ints[0];
  return projection.op->kind == OpKind::final ? projection.attrs.body->outs[static_cast<std::size_t>(i)]
                                              : static_cast<NodeId>(i);
}

std::vector<char> marked_inputs(const Node& scan, const std::vector<char>& marked) {
  std::vector<char> in;
  for (NodeId id : scan.inputs) in.push_back(marked[static_cast<std::size_t>(id)]);
  return in;
}

}  // namespace

bool passes(const Node& n, std::size_t input, const Node& source) {
  return is_float(n.spec.dtype) && is_float(source.spec.dtype) && n.op->vjp &&
         !(n.op->cut && !n.op->cut(static_cast<int>(input)).empty());
}

std::vector<char> dependents(const std::deque<Node>& nodes, std::vector<char> marked) {
  std::unordered_map<NodeId, std::vector<char>> bodies;
  for (std::size_t id = 0; id < marked.size(); ++id) {
    const Node& n = nodes[id];
    if (marked[id] || n.inputs.empty()) continue;
    switch (n.op->kind) {
      case OpKind::input:
      case OpKind::constant:
        break;
      case OpKind::value:
        for (std::size_t i = 0; i < n.inputs.size() && !marked[id]; ++i)
          marked[id] = marked[static_cast<std::size_t>(n.inputs[i])] &&
                       passes(n, i, nodes[static_cast<std::size_t>(n.inputs[i])]);
        break;
      case OpKind::scan: {
        const std::vector<char> in = marked_inputs(n, marked);
        marked[id] = std::ranges::find(in, 1) != in.end();
        if (marked[id]) bodies.emplace(static_cast<NodeId>(id), active_in_body(*n.attrs.body, in));
        break;
      }
      case OpKind::final:
      case OpKind::stack:
        if (const auto body = bodies.find(n.inputs[0]); body != bodies.end())
          marked[id] = body->second[static_cast<std::size_t>(body_node(n))];
        break;
    }
  }
  return marked;
}

std::vector<char> active_in_body(const Body& body, const std::vector<char>& marked_in) {
  std::vector<char> inputs = marked_in;
  for (;;) {
    std::vector<char> marked(body.nodes.size(), 0);
    std::ranges::copy(inputs, marked.begin());
    marked = dependents(body.nodes, std::move(marked));
    bool grew = false;
    for (std::size_t i = 0; i < static_cast<std::size_t>(body.carries); ++i)
      if (marked[static_cast<std::size_t>(body.outs[i])] && !inputs[i]) inputs[i] = grew = true;
    if (!grew) return marked;
  }
}

namespace {

// Where the paths from x to y end, for the error message.
class Cuts {
 public:
  std::string explain(Tensor y, NodeId x) {
    const Graph& g = y.graph();
    const std::vector<char> needed = live_nodes(g.nodes(), std::vector{y.id()}, {});
    std::vector<char> touched(static_cast<std::size_t>(g.size()), 0);
    touched[static_cast<std::size_t>(x)] = 1;
    touched = follow(g.nodes(), std::move(touched), &needed, true);
    if (!touched[static_cast<std::size_t>(y.id())]) return "x never meets y";
    return "the path is cut at " + text_;
  }

 private:
  // Everything that touched nodes lead to, whether or not a derivative passes. `note`: list where none
  // passes.
  std::vector<char> follow(const std::deque<Node>& nodes, std::vector<char> touched,
                           const std::vector<char>* needed, bool note) {
    std::unordered_map<NodeId, std::vector<char>> bodies;
    for (std::size_t id = 0; id < nodes.size(); ++id) {
      const Node& n = nodes[id];
      if (n.op->kind == OpKind::scan) {
        bodies[static_cast<NodeId>(id)] =
            follow_body(*n.attrs.body, marked_inputs(n, touched), note && (!needed || (*needed)[id]));
      } else if (n.op->kind == OpKind::final || n.op->kind == OpKind::stack) {
        touched[id] = touched[id] || bodies[n.inputs[0]][static_cast<std::size_t>(body_node(n))];
        continue;
      }
      for (std::size_t i = 0; i < n.inputs.size(); ++i) {
        const Node& source = nodes[static_cast<std::size_t>(n.inputs[i])];
        if (!touched[static_cast<std::size_t>(n.inputs[i])]) continue;
        touched[id] = 1;
        if (note && (!needed || (*needed)[id]) && n.op->kind == OpKind::value && !passes(n, i, source))
          add(static_cast<NodeId>(id), n, i, !needed);
      }
    }
    return touched;
  }

  std::vector<char> follow_body(const Body& body, std::vector<char> inputs, bool note) {
    for (;;) {
      std::vector<char> touched(body.nodes.size(), 0);
      std::ranges::copy(inputs, touched.begin());
      touched = follow(body.nodes, std::move(touched), nullptr, false);
      bool grew = false;
      for (std::size_t i = 0; i < static_cast<std::size_t>(body.carries); ++i)
        if (touched[static_cast<std::size_t>(body.outs[i])] && !inputs[i]) inputs[i] = grew = true;
      if (grew) continue;
      return note ? follow(body.nodes, std::move(touched), nullptr, true) : touched;
    }
  }

  void add(NodeId id, const Node& n, std::size_t input, bool inside) {
    std::string_view why = "integers have no derivative";
    if (!n.op->vjp) why = n.op->not_differentiable;
    else if (n.op->cut && !n.op->cut(static_cast<int>(input)).empty())
      why = n.op->cut(static_cast<int>(input));
    if (text_.size() > 400) return;
    text_ += fmt::format("{}{}%{} = {} {} ({}): {}", text_.empty() ? "" : "; ", inside ? "(in a scan) " : "",
                         id, n.op->name, to_string(n.spec), describe(n.loc), why);
  }

  std::string text_;
};

}  // namespace

std::string where_cut(Tensor y, NodeId x) { return Cuts().explain(y, x); }

}  // namespace nestgrad
