#include "ttt/one_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "engine/core/body.h"
#include "engine/core/node_call.h"
#include "engine/core/node_text.h"
#include "ops/attrs.h"
#include "ops/table.h"

namespace nestgrad::ttt {

namespace {

using Nodes = std::deque<GraphNode>;

bool only_moves(const GraphNode& n) { return n.op->view != nullptr || n.op == &reshape_op; }

// The same numbers where both have some.
bool same_numbers(const Array& a, const Array& b) {
  const auto same = [&](std::int64_t i, std::int64_t j) {
    const double x = a.at(i), y = b.at(j);
    return x == y || (std::isnan(x) && std::isnan(y));
  };
  if (a.spec().dtype != b.spec().dtype) return false;
  const Shape &of_a = a.shape(), &of_b = b.shape();
  const std::size_t rank = std::min(of_a.size(), of_b.size());
  Shape common(of_a.end() - static_cast<std::ptrdiff_t>(rank), of_a.end());
  for (std::size_t d = 0; d < rank; ++d) common[d] = std::min(common[d], of_b[of_b.size() - rank + d]);
  const auto flat = [&](const Shape& shape, std::int64_t i) {
    std::int64_t out = 0, stride = 1;
    for (std::size_t d = rank; d-- > 0; i /= common[d]) {
      out += i % common[d] * stride;
      stride *= shape[shape.size() - rank + d];
    }
    return out;
  };
  for (std::int64_t i = 0; i < numel(common); ++i)
    if (!same(flat(of_a, i), flat(of_b, i))) return false;
  return true;
}

// Walks two lists of nodes side by side, from what they give to what it is made of.
class SideBySide {
 public:
  using SameInput = std::function<bool(NodeId a, NodeId b)>;
  SideBySide(const Nodes& a, const Nodes& b, bool one_token, SameInput same_input)
      : a_(a), b_(b), one_token_(one_token), same_input_(std::move(same_input)) {}
  // Sums of what is made of this input, as a cotangent's are that go to an input for all rows, count nothing: what a token adds is
  // its own (FlowOptions::rules).
  void let_add_up(NodeId cotangent) {
    made_of_cotangent_.assign(a_.size(), 0);
    made_of_cotangent_[static_cast<std::size_t>(cotangent)] = 1;
    for (std::size_t id = 0; id < a_.size(); ++id)
      for (const NodeId in : a_[id].inputs)
        if (made_of_cotangent_[static_cast<std::size_t>(in)]) made_of_cotangent_[id] = 1;
  }

  // The first difference below these two; empty if there is none. What was looked at before is not looked at again.
  std::string difference(NodeId a, NodeId b) {
    std::vector<std::pair<NodeId, NodeId>> todo{{a, b}};
    while (!todo.empty()) {
      auto [x, y] = todo.back();
      todo.pop_back();
      if (one_token_) {
        while (only_moves(of_a(x))) x = of_a(x).inputs[0];
        while (only_moves(of_b(y))) y = of_b(y).inputs[0];
      }
      if (!seen_.emplace(x, y).second) continue;
      if (std::string why = at(x, y); !why.empty()) return why;
      const std::vector<NodeId>& below = of_a(x).inputs;
      for (std::size_t i = 0; i < below.size(); ++i) todo.emplace_back(below[i], of_b(y).inputs[i]);
    }
    return {};
  }

 private:
  const GraphNode& of_a(NodeId id) const { return a_[static_cast<std::size_t>(id)]; }
  const GraphNode& of_b(NodeId id) const { return b_[static_cast<std::size_t>(id)]; }

  std::string at(NodeId x, NodeId y) {
    const GraphNode &n = of_a(x), &m = of_b(y);
    const bool computes = n.op->kind != OpKind::input && n.op->kind != OpKind::constant && !only_moves(n);
    const auto told = [&](std::string_view what) { return fmt::format("{}, at {}", what, describe(a_, x)); };
    if (n.op != m.op || n.inputs.size() != m.inputs.size())
      return fmt::format("an op is there or not by how many tokens or axes there are, '{}' at {}",
                         computes ? n.op->name : m.op->name, nestgrad::describe(computes ? n.loc : m.loc));
    if (n.op->kind == OpKind::input)
      return same_input_(x, y) ? "" : told("what is read differs by how many tokens or axes there are");
    if (n.op->kind == OpKind::constant) {
      const Array& literal = literal_of(n);
      if (same_numbers(literal, literal_of(m))) return {};
      constexpr std::string_view kMade = "a number is made of how many tokens or axes there are";
      return literal.size() == 1 ? fmt::format("{}, {} at {}", kMade, literal.item(), describe(a_, x))
                                 : told(kMade);
    }
    if (const auto* scan = n.attrs.find<ScanAttrs>()) {
      const auto& other = m.attrs.as<ScanAttrs>();
      if (scan->steps != other.steps || scan->reverse != other.reverse)
        return told("a loop has as many steps as there are tokens or axes");
      return in_bodies(*scan->body, *other.body);
    }
    if (const auto* stack = n.attrs.find<StackAttrs>()) {
      const auto& other = m.attrs.as<StackAttrs>();
      return body(*stack->body, *other.body).difference(stack->node, other.node);
    }
    if (const auto* last = n.attrs.find<FinalAttrs>())
      return last->carry == m.attrs.as<FinalAttrs>().carry ? "" : told("another value of a loop is read");
    if (const auto* function = n.attrs.find<CustomAttrs>()) {
      const auto& other = m.attrs.as<CustomAttrs>();
      if (std::string why = in_bodies(*function->forward, *other.forward); !why.empty()) return why;
      body(*function->rule, *other.rule).let_add_up(static_cast<NodeId>(n.inputs.size()) + 1);
      return in_bodies(*function->rule, *other.rule);
    }
    if (one_token_) return {};
    if (!same_attrs(n, m)) return told("an op is told how many tokens or axes there are");
    const bool adds_up = !made_of_cotangent_.empty() && made_of_cotangent_[static_cast<std::size_t>(x)];
    return adds_up || same_axes(n, m) ? "" : told("how many tokens or axes there are is counted");
  }

  // Axes that the other has too, which has so many fewer.
  static Shape of_both(const Shape& axes, int more) {
    Shape out;
    for (const std::int64_t axis : axes)
      if (axis >= more) out.push_back(axis);
    return out;
  }

  // Are axes that they are told, counted from the end, and all other numbers the same?
  bool same_attrs(const GraphNode& n, const GraphNode& m) const {
    if (n.attrs == m.attrs || n.attrs.find<ShapeAttrs>()) return true;
    const int rank = (n.inputs.empty() ? n : of_a(n.inputs[0])).spec.rank(),
              other = (m.inputs.empty() ? m : of_b(m.inputs[0])).spec.rank();
    const auto same_axis = [&](std::int64_t i, std::int64_t j) { return i - rank == j - other; };
    if (const auto* a = n.attrs.find<IotaAttrs>()) {
      const auto& b = m.attrs.as<IotaAttrs>();
      return same_axis(a->axis, b.axis) && a->dtype == b.dtype;
    }
    if (const auto* a = n.attrs.find<SliceAttrs>()) {
      const auto& b = m.attrs.as<SliceAttrs>();
      return same_axis(a->axis, b.axis) && a->begin == b.begin && a->end == b.end;
    }
    if (const auto* a = n.attrs.find<PadAttrs>()) {
      const auto& b = m.attrs.as<PadAttrs>();
      return same_axis(a->axis, b.axis) && a->before == b.before && a->after == b.after;
    }
    if (const auto* a = n.attrs.find<ConcatAttrs>())
      return same_axis(a->axis, m.attrs.as<ConcatAttrs>().axis);
    if (const auto* a = n.attrs.find<CumsumAttrs>()) {
      const auto& b = m.attrs.as<CumsumAttrs>();
      return same_axis(a->axis, b.axis) && a->reverse == b.reverse;
    }
    if (const auto* a = n.attrs.find<ReduceAttrs>())
      return std::ranges::equal(of_both(a->axes, rank - other),
                                of_both(m.attrs.as<ReduceAttrs>().axes, other - rank), same_axis);
    if (const auto* a = n.attrs.find<PermuteAttrs>()) {
      // Axes that only one of them has stay in front.
      const Shape& b = m.attrs.as<PermuteAttrs>().order;
      const Shape &fewer = rank < other ? a->order : b, &more = rank < other ? b : a->order;
      const std::size_t front = more.size() - fewer.size();
      for (std::size_t i = 0; i < more.size(); ++i)
        if (const auto to = more[i] - static_cast<std::int64_t>(front);
            i < front ? more[i] != static_cast<std::int64_t>(i) : to != fewer[i - front])
          return false;
      return true;
    }
    return false;
  }

  // An axis that is not there is one of extent 1.
  static std::int64_t extent(const Shape& shape, int axis) {
    return axis < 0 ? 1 : shape[static_cast<std::size_t>(axis)];
  }

  // Does no op combine slices along an axis of which they have not as many?
  bool same_axes(const GraphNode& n, const GraphNode& m) const {
    if (n.op == &reshape_op) return true;
    const NodeCall call_n(a_, n), call_m(b_, m);
    for (std::size_t i = 0; i < n.inputs.size(); ++i) {
      const Shape &of_n = call_n.in(i).shape, &of_m = call_m.in(i).shape;
      const int rank_n = static_cast<int>(of_n.size()), rank_m = static_cast<int>(of_m.size());
      for (int d = 1; d <= std::max(rank_n, rank_m); ++d) {
        const int at_n = rank_n - d, at_m = rank_m - d;
        if (extent(of_n, at_n) == extent(of_m, at_m)) continue;
        const auto follows = [&](const GraphNode& node, const NodeCall& call, int axis) {
          return axis < 0 || (node.op->axes && node.op->axes(call, static_cast<int>(i), axis) >= 0);
        };
        if (!follows(n, call_n, at_n) || !follows(m, call_m, at_m)) return false;
      }
    }
    return true;
  }

  SideBySide& body(const GraphBody& a, const GraphBody& b) {
    auto& known = bodies_[{&a, &b}];
    if (!known)
      known = std::make_unique<SideBySide>(a.nodes, b.nodes, one_token_,
                                           [](NodeId i, NodeId j) { return i == j; });
    return *known;
  }
  std::string in_bodies(const GraphBody& a, const GraphBody& b) {
    if (&a == &b) return {};
    std::string why;
    for (std::size_t i = 0; i < std::min(a.outs.size(), b.outs.size()) && why.empty(); ++i)
      why = body(a, b).difference(a.outs[i], b.outs[i]);
    return why;
  }

  const Nodes &a_, &b_;
  const bool one_token_;
  const SameInput same_input_;
  std::vector<char> made_of_cotangent_;  // by node of a; empty: no input is one
  std::set<std::pair<NodeId, NodeId>> seen_;
  std::map<std::pair<const GraphBody*, const GraphBody*>, std::unique_ptr<SideBySide>> bodies_;
};

// Of each node of a graph: the tensor that it stands for, if it is a capture; else its number among the inputs.
struct Named {
  Tensor outer;
  std::size_t number = 0;
};
std::map<NodeId, Named> inputs_of(const Graph& graph) {
  std::map<NodeId, Named> out;
  for (const Capture& c : graph.captures()) out[c.id].outer = c.outer;
  std::size_t next = 0;
  for (const NodeId id : graph.inputs())
    if (!out.contains(id)) out[id].number = next++;
  return out;
}

}  // namespace

std::string why_not_one_text(const TracedText& a, const TracedText& b, bool one_token) {
  const std::map<NodeId, Named> of_a = inputs_of(a.graph), of_b = inputs_of(b.graph);
  SideBySide walk(a.graph.nodes(), b.graph.nodes(), one_token, [&](NodeId i, NodeId j) {
    const Named &x = of_a.at(i), &y = of_b.at(j);
    if (!x.outer.defined() || !y.outer.defined())
      return x.outer.defined() == y.outer.defined() && x.number == y.number;
    return x.outer == y.outer;
  });
  std::string why;
  for (std::size_t i = 0; i < a.outs.size() && why.empty(); ++i) why = walk.difference(a.outs[i], b.outs[i]);
  return why;
}

}  // namespace nestgrad::ttt
