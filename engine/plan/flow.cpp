#include "engine/plan/flow.h"

#include <fmt/format.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "engine/core/index.h"
#include "engine/core/node_call.h"
#include "engine/plan/liveness.h"

namespace nestgrad {

namespace {

class Follower {
 public:
  // given_varies: may input i, if free, differ along this axis?
  explicit Follower(const std::deque<GraphNode>& nodes, const FlowOptions& options,
                    std::function<bool(NodeId i, int axis)> given_varies = {})
      : nodes_(nodes), flows_(nodes.size()), options_(options), given_varies_(std::move(given_varies)) {}

  std::vector<AxisFlow> run(const std::vector<std::pair<NodeId, AxisFlow>>& inputs) {
    for (const auto& [id, flow] : inputs) flows_[uz(id)] = flow;
    for (std::size_t id = 0; id < nodes_.size(); ++id) visit(static_cast<NodeId>(id));
    return std::move(flows_);
  }

  // May a free value differ along this axis? It does where an operand does from which the axis comes; these are followed without
  // calls, as chains of ops are long.
  bool varies(NodeId id, int axis) {
    if (const auto known = varies_.find({id, axis}); known != varies_.end()) return known->second;
    std::set<Along> seen{{id, axis}};
    for (std::vector<Along> todo{{id, axis}}; !todo.empty();) {
      const Along at = todo.back();
      todo.pop_back();
      const std::optional<std::vector<Along>> sources = sources_of(at);
      if (!sources) return varies_[{id, axis}] = true;
      for (const Along& source : *sources) {
        const auto known = varies_.find(source);
        if (known != varies_.end() && known->second) return varies_[{id, axis}] = true;
        if (known == varies_.end() && seen.insert(source).second) todo.push_back(source);
      }
    }
    for (const Along& at : seen) varies_[at] = false;
    return false;
  }

 private:
  using Along = std::pair<NodeId, int>;  // a node, and one of its axes

  // The operands, and their axes, from which an axis comes: without a variation in one of these it has none. Nothing: it may have
  // one of its own.
  std::optional<std::vector<Along>> sources_of(Along at) {
    const auto [id, axis] = at;
    const GraphNode& n = node(id);
    std::vector<Along> out;
    if (n.spec.shape[uz(axis)] == 1) return out;
    if (n.op->kind == OpKind::input && given_varies_) {
      if (given_varies_(id, axis)) return {};
      return out;
    }
    if (n.op->kind != OpKind::value || !n.op->axes || n.inputs.empty()) return {};
    const NodeCall call(nodes_, n);
    for (std::size_t i = 0; i < n.inputs.size(); ++i) {
      const std::size_t before = out.size();
      for (int a = 0; a < call.in(i).rank(); ++a)
        if (n.op->axes(call, static_cast<int>(i), a) == axis) out.emplace_back(n.inputs[i], a);
      if (out.size() == before && !n.op->broadcasts) return {};
    }
    return out;
  }

  const GraphNode& node(NodeId id) const { return nodes_[uz(id)]; }

  AxisFlow mixed(NodeId id, std::string why) const { return {AxisFlow::Kind::mixed, -1, id, std::move(why)}; }

  void visit(NodeId id) {
    const GraphNode& n = node(id);
    switch (n.op->kind) {
      case OpKind::input:
      case OpKind::constant:
        return;
      case OpKind::scan:
        return visit_scan(id);
      case OpKind::final:
      case OpKind::stack:
        flows_[uz(id)] = projected(id);
        return;
      case OpKind::value:
        flows_[uz(id)] = n.attrs.find<CustomAttrs>() ? through_function(id) : through_op(id);
        return;
    }
  }

  // Is op n of sums over slices (so many of its inputs; the others have nothing to do with slices) the sum of
  // op n of the slices?
  bool keeps_sums(const NodeCall& call, const GraphNode& n, std::size_t sums) const {
    if (sums == n.inputs.size()) return n.op->is_linear;
    if (sums > 1 || !n.op->is_product || !n.op->linear_in) return false;
    for (std::size_t i = 0; i < n.inputs.size(); ++i) {
      const AxisFlow::Kind kind = flows_[uz(n.inputs[i])].kind;
      if (kind == AxisFlow::Kind::partial ? !n.op->linear_in(call, static_cast<int>(i))
                                          : kind != AxisFlow::Kind::free)
        return false;
    }
    return true;
  }

  // Where input i's followed axis goes; joins all inputs.
  AxisFlow through_op(NodeId id) {
    const GraphNode& n = node(id);
    const NodeCall call(nodes_, n);
    AxisFlow out;
    std::size_t partial = 0;
    for (std::size_t i = 0; i < n.inputs.size(); ++i) {
      const AxisFlow& in = flows_[uz(n.inputs[i])];
      if (in.kind == AxisFlow::Kind::mixed) return in;
      if (in.kind == AxisFlow::Kind::partial) ++partial;
      if (in.kind != AxisFlow::Kind::along) continue;
      if (options_.partial && n.op->sums_over && n.op->sums_over(call, in.axis)) return AxisFlow::partial();
      const int to = n.op->axes ? n.op->axes(call, static_cast<int>(i), in.axis) : -1;
      if (to < 0) return mixed(id, fmt::format("it combines slices of %{}", n.inputs[i]));
      if (out.kind == AxisFlow::Kind::along && out.axis != to)
        return mixed(id, "it pairs every slice of one operand with every slice of another");
      out = AxisFlow::along(to);
    }
    if (partial > 0)
      return keeps_sums(call, n, partial) ? AxisFlow::partial()
                                          : mixed(id, "it is not linear in a sum over slices");
    if (out.kind == AxisFlow::Kind::free || options_.positional) return out;
    for (std::size_t i = 0; i < n.inputs.size(); ++i) {
      if (flows_[uz(n.inputs[i])].kind != AxisFlow::Kind::free) continue;
      for (int axis = 0; axis < call.in(i).rank(); ++axis)
        if (n.op->axes(call, static_cast<int>(i), axis) == out.axis && varies(n.inputs[i], axis))
          return mixed(id, fmt::format("%{} is a constant that differs from slice to slice", n.inputs[i]));
    }
    return out;
  }

  // A function with a rule of its own: what its forward pass does, and its rule if that is asked for. (It is followed anyway where
  // it has been written out.)
  AxisFlow through_function(NodeId id) {
    const GraphNode& n = node(id);
    const GraphBody& forward = *n.attrs.as<CustomAttrs>().forward;
    std::vector<std::pair<NodeId, AxisFlow>> given;
    for (std::size_t i = 0; i < n.inputs.size(); ++i) {
      const AxisFlow& in = flows_[uz(n.inputs[i])];
      if (in.kind == AxisFlow::Kind::mixed) return in;
      given.emplace_back(static_cast<NodeId>(i), in);
    }
    const auto given_varies = [&](NodeId i, int axis) { return varies(n.inputs[uz(i)], axis); };
    const AxisFlow out = Follower(forward.nodes, options_, given_varies).run(given)[uz(forward.outs[0])];
    if (out.kind == AxisFlow::Kind::mixed) return mixed(id, "inside the function: " + out.why);
    if (options_.rules)
      if (const std::string why = why_rule_mixes(n, given, out); !why.empty())
        return mixed(id, "inside the function's rule: " + why);
    return out;
  }

  // The rule is given the inputs, the output and its cotangent, which has the output's slices. An input's cotangent has those
  // of the input; that of an input which has none is what the slices add up to.
  std::string why_rule_mixes(const GraphNode& n, std::vector<std::pair<NodeId, AxisFlow>> given,
                             const AxisFlow& out) {
    if (out.kind != AxisFlow::Kind::along) return {};
    const GraphBody& rule = *n.attrs.as<CustomAttrs>().rule;
    for (int i = 0; i < 2; ++i) given.emplace_back(static_cast<NodeId>(given.size()), out);
    FlowOptions options = options_;
    options.partial = true;
    Follower follower(rule.nodes, options, [&](NodeId i, int axis) { return varies(n.inputs[uz(i)], axis); });
    const std::vector<AxisFlow> flows = follower.run(given);
    for (std::size_t i = 0; i < n.inputs.size(); ++i) {
      const AxisFlow &of = given[i].second, &back = flows[uz(rule.outs[i])];
      if (back.kind == AxisFlow::Kind::mixed) return back.why;
      if (of.kind != AxisFlow::Kind::along) continue;
      if (back.kind == AxisFlow::Kind::partial)
        return fmt::format("the cotangent of input {} is a sum over slices", i);
      if (back.kind == AxisFlow::Kind::along && back.axis != of.axis)
        return fmt::format("the cotangent of input {} has its slices along another axis", i);
      if (back.kind == AxisFlow::Kind::free && !options.positional && follower.varies(rule.outs[i], of.axis))
        return fmt::format("the cotangent of input {} differs from slice to slice by itself", i);
    }
    return {};
  }

  // ---- scans: the body's flows, carries to a fixpoint; the time axis itself is not followed ----

  void visit_scan(NodeId id) {
    const GraphNode& n = node(id);
    const GraphBody& body = body_of(n);
    std::vector<AxisFlow> in;
    for (std::size_t i = 0; i < n.inputs.size(); ++i) {
      AxisFlow f = flows_[uz(n.inputs[i])];
      const bool per_step =
          static_cast<int>(i) >= body.carries && static_cast<int>(i) < body.carries + body.xs;
      if (f.kind == AxisFlow::Kind::along && per_step && f.axis-- == 0)
        f = mixed(id, fmt::format("it carries something from slice to slice of %{}", n.inputs[i]));
      in.push_back(std::move(f));
    }
    std::set<Along> varying;  // carries that begin alike along an axis, and do not stay so
    const auto given_varies = [&](NodeId i, int axis) {
      if (i < body.carries)
        return !options_.constant_carries || varying.contains({i, axis}) || varies(n.inputs[uz(i)], axis);
      return varies(n.inputs[uz(i)], i < body.carries + body.xs ? axis + 1 : axis);
    };
    FlowOptions inner = options_;
    inner.partial = false;  // a sum over slices would have to be finished before the scan's next step
    for (AxisFlow& f : in)
      if (f.kind == AxisFlow::Kind::partial) f = mixed(id, "it reads a sum over slices");
    for (;;) {
      std::vector<std::pair<NodeId, AxisFlow>> given;
      for (std::size_t i = 0; i < in.size(); ++i) given.emplace_back(static_cast<NodeId>(i), in[i]);
      std::vector<AxisFlow> inside = Follower(body.nodes, inner, given_varies).run(given);
      bool changed = false;
      for (std::size_t c = 0; c < uz(body.carries); ++c) {
        const AxisFlow& next = inside[uz(body.outs[c])];
        if (options_.constant_carries && note_varying(body, static_cast<NodeId>(c), given_varies, varying))
          changed = true;
        if (next.kind == in[c].kind && next.axis == in[c].axis) continue;
        if (in[c].kind == AxisFlow::Kind::mixed || next.kind == AxisFlow::Kind::free) continue;
        if (next.kind == AxisFlow::Kind::mixed) in[c] = mixed_inside(id, next);
        else if (options_.constant_carries && !options_.positional && in[c].kind == AxisFlow::Kind::free &&
                 varies(n.inputs[c], next.axis))
          in[c] =
              mixed(id, fmt::format("carry {} begins with a constant that differs from slice to slice", c));
        else
          in[c] = in[c].kind == AxisFlow::Kind::free
                      ? next
                      : mixed(id, fmt::format("carry {} moves between axes", c));
        changed = true;
      }
      if (changed) continue;
      for (AxisFlow& f : inside)
        if (f.kind == AxisFlow::Kind::mixed && f.culprit != id) f = mixed_inside(id, f);
      bodies_[id] = std::move(inside);
      return;
    }
  }

  // Axes along which what a step makes of a carry varies, though all that it is made of is free there; are there new ones?
  bool note_varying(const GraphBody& body, NodeId carry, const std::function<bool(NodeId i, int axis)>& given,
                    std::set<Along>& varying) const {
    bool any = false;
    for (int axis = 0; axis < body.spec(carry).rank(); ++axis) {
      if (varying.contains({carry, axis}) || given(carry, axis)) continue;
      if (Follower(body.nodes, options_, given).varies(body.outs[uz(carry)], axis))
        any |= varying.insert({carry, axis}).second;
    }
    return any;
  }

  // What a body combines, told of its scan; once, however many scans and steps it comes through.
  AxisFlow mixed_inside(NodeId scan, const AxisFlow& f) const {
    static constexpr std::string_view kInside = "inside the scan: ";
    return mixed(scan, f.why.starts_with(kInside) ? f.why : std::string(kInside) + f.why);
  }

  // A stack has the axis of steps before those of one step.
  AxisFlow projected(NodeId id) {
    const GraphNode& n = node(id);
    AxisFlow f = bodies_[n.inputs[0]][uz(shown_by(n))];
    if (f.kind == AxisFlow::Kind::along && n.op->kind == OpKind::stack) f.axis += 1;
    return f;
  }

  const std::deque<GraphNode>& nodes_;
  std::vector<AxisFlow> flows_;
  FlowOptions options_;
  std::function<bool(NodeId i, int axis)> given_varies_;
  std::map<NodeId, std::vector<AxisFlow>> bodies_;
  std::map<Along, bool> varies_;  // what is known: paths to a node are many
};

}  // namespace

std::vector<AxisFlow> follow(const std::deque<GraphNode>& nodes,
                             const std::vector<std::pair<NodeId, AxisFlow>>& inputs,
                             const FlowOptions& options) {
  return Follower(nodes, options).run(inputs);
}

std::vector<std::pair<NodeId, AxisFlow>> member_seeds(const std::deque<GraphNode>& nodes, int axis,
                                                      int rank) {
  std::vector<std::pair<NodeId, AxisFlow>> out;
  for (std::size_t id = 0; id < nodes.size(); ++id) {
    const int at = axis - (rank - nodes[id].spec.rank());
    if (nodes[id].op->kind == OpKind::input && at >= 0 && nodes[id].spec.shape[uz(at)] > 1)
      out.emplace_back(static_cast<NodeId>(id), AxisFlow::along(at));
  }
  return out;
}

bool may_vary(const std::deque<GraphNode>& nodes, NodeId id, int axis) {
  return Follower(nodes, {}).varies(id, axis);
}

}  // namespace nestgrad
