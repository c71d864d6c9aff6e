#include "engine/plan/flow.h"

#include <fmt/format.h>

#include <functional>
#include <map>

#include "engine/core/index.h"
#include "engine/plan/liveness.h"

namespace nestgrad {

namespace {

class Follower {
 public:
  // given_varies: may input i, if free, differ along this axis?
  explicit Follower(const std::deque<Node>& nodes, const FlowOptions& options,
                    std::function<bool(NodeId i, int axis)> given_varies = {})
      : nodes_(nodes), flows_(nodes.size()), options_(options), given_varies_(std::move(given_varies)) {}

  std::vector<Flow> run(const std::vector<std::pair<NodeId, Flow>>& inputs) {
    for (const auto& [id, flow] : inputs) flows_[uz(id)] = flow;
    for (std::size_t id = 0; id < nodes_.size(); ++id) visit(static_cast<NodeId>(id));
    return std::move(flows_);
  }

  // May a free value differ along this axis?
  bool varies(NodeId id, int axis) const {
    const Node& n = node(id);
    if (n.spec.shape[uz(axis)] == 1) return false;
    if (n.op->kind == OpKind::input && given_varies_) return given_varies_(id, axis);
    if (n.op->kind != OpKind::value || !n.op->axes || n.inputs.empty()) return true;
    const NodeCall call(nodes_, n);
    for (std::size_t i = 0; i < n.inputs.size(); ++i) {
      bool mapped = false;
      for (int a = 0; a < call.in(i).rank(); ++a) {
        if (n.op->axes(call, static_cast<int>(i), a) != axis) continue;
        mapped = true;
        if (varies(n.inputs[i], a)) return true;
      }
      if (!mapped && !n.op->broadcasts) return true;
    }
    return false;
  }

 private:
  const Node& node(NodeId id) const { return nodes_[uz(id)]; }

  Flow mixed(NodeId id, std::string why) const { return {Flow::Kind::mixed, -1, id, std::move(why)}; }

  void visit(NodeId id) {
    const Node& n = node(id);
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
        flows_[uz(id)] = through_op(id);
        return;
    }
  }

  // Is op n of sums over slices (so many of its inputs; the others have nothing to do with slices) the sum of
  // op n of the slices?
  bool keeps_sums(const NodeCall& call, const Node& n, std::size_t sums) const {
    if (sums == n.inputs.size()) return n.op->is_linear;
    if (sums > 1 || !n.op->is_product || !n.op->linear_in) return false;
    for (std::size_t i = 0; i < n.inputs.size(); ++i) {
      const Flow::Kind kind = flows_[uz(n.inputs[i])].kind;
      if (kind == Flow::Kind::partial ? !n.op->linear_in(call, static_cast<int>(i))
                                      : kind != Flow::Kind::free)
        return false;
    }
    return true;
  }

  // Where input i's followed axis goes; joins all inputs.
  Flow through_op(NodeId id) {
    const Node& n = node(id);
    const NodeCall call(nodes_, n);
    Flow out;
    std::size_t partial = 0;
    for (std::size_t i = 0; i < n.inputs.size(); ++i) {
      const Flow& in = flows_[uz(n.inputs[i])];
      if (in.kind == Flow::Kind::mixed) return in;
      if (in.kind == Flow::Kind::partial) ++partial;
      if (in.kind != Flow::Kind::along) continue;
      if (options_.partial && n.op->sums_over && n.op->sums_over(call, in.axis)) return Flow::partial();
      const int to = n.op->axes ? n.op->axes(call, static_cast<int>(i), in.axis) : -1;
      if (to < 0) return mixed(id, fmt::format("it combines slices of %{}", n.inputs[i]));
      if (out.kind == Flow::Kind::along && out.axis != to)
        return mixed(id, "it pairs every slice of one operand with every slice of another");
      out = Flow::along(to);
    }
    if (partial > 0)
      return keeps_sums(call, n, partial) ? Flow::partial()
                                          : mixed(id, "it is not linear in a sum over slices");
    if (out.kind == Flow::Kind::free || options_.positional) return out;
    for (std::size_t i = 0; i < n.inputs.size(); ++i) {
      if (flows_[uz(n.inputs[i])].kind != Flow::Kind::free) continue;
      for (int axis = 0; axis < call.in(i).rank(); ++axis)
        if (n.op->axes(call, static_cast<int>(i), axis) == out.axis && varies(n.inputs[i], axis))
          return mixed(id, fmt::format("%{} is a constant that differs from slice to slice", n.inputs[i]));
    }
    return out;
  }

  // ---- scans: the body's flows, carries to a fixpoint; the time axis itself is not followed ----

  void visit_scan(NodeId id) {
    const Node& n = node(id);
    const Body& body = body_of(n);
    std::vector<Flow> in;
    for (std::size_t i = 0; i < n.inputs.size(); ++i) {
      Flow f = flows_[uz(n.inputs[i])];
      const bool per_step =
          static_cast<int>(i) >= body.carries && static_cast<int>(i) < body.carries + body.xs;
      if (f.kind == Flow::Kind::along && per_step && f.axis-- == 0)
        f = mixed(id, fmt::format("it carries something from slice to slice of %{}", n.inputs[i]));
      in.push_back(std::move(f));
    }
    const auto given_varies = [&](NodeId i, int axis) {
      if (i < body.carries) return true;
      return varies(n.inputs[uz(i)], i < body.carries + body.xs ? axis + 1 : axis);
    };
    FlowOptions inner = options_;
    inner.partial = false;  // a sum over slices would have to be finished before the scan's next step
    for (Flow& f : in)
      if (f.kind == Flow::Kind::partial) f = mixed(id, "it reads a sum over slices");
    for (;;) {
      std::vector<std::pair<NodeId, Flow>> given;
      for (std::size_t i = 0; i < in.size(); ++i) given.emplace_back(static_cast<NodeId>(i), in[i]);
      std::vector<Flow> inside = Follower(body.nodes, inner, given_varies).run(given);
      bool changed = false;
      for (std::size_t c = 0; c < uz(body.carries); ++c) {
        const Flow& next = inside[uz(body.outs[c])];
        if (next.kind == in[c].kind && next.axis == in[c].axis) continue;
        if (in[c].kind == Flow::Kind::mixed || next.kind == Flow::Kind::free) continue;
        if (next.kind == Flow::Kind::mixed) in[c] = mixed(id, "inside the scan: " + next.why);
        else
          in[c] = in[c].kind == Flow::Kind::free ? next
                                                 : mixed(id, fmt::format("carry {} moves between axes", c));
        changed = true;
      }
      if (changed) continue;
      for (Flow& f : inside)
        if (f.kind == Flow::Kind::mixed && f.culprit != id) f = mixed(id, "inside the scan: " + f.why);
      bodies_[id] = std::move(inside);
      return;
    }
  }

  // A stack has the axis of steps before those of one step.
  Flow projected(NodeId id) {
    const Node& n = node(id);
    Flow f = bodies_[n.inputs[0]][uz(shown_by(n))];
    if (f.kind == Flow::Kind::along && n.op->kind == OpKind::stack) f.axis += 1;
    return f;
  }

  const std::deque<Node>& nodes_;
  std::vector<Flow> flows_;
  FlowOptions options_;
  std::function<bool(NodeId i, int axis)> given_varies_;
  std::map<NodeId, std::vector<Flow>> bodies_;
};

}  // namespace

std::vector<Flow> follow(const std::deque<Node>& nodes, const std::vector<std::pair<NodeId, Flow>>& inputs,
                         const FlowOptions& options) {
  return Follower(nodes, options).run(inputs);
}

bool may_vary(const std::deque<Node>& nodes, NodeId id, int axis) {
  return Follower(nodes, {}).varies(id, axis);
}

}  // namespace nestgrad
