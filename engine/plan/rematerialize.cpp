// The pass that decides what scans keep and what is computed again.
#include <array>
#include <map>
#include <optional>

#include "engine/core/body.h"
#include "engine/core/index.h"
#include "engine/plan/liveness.h"
#include "engine/plan/passes.h"
#include "engine/plan/readers.h"
#include "engine/plan/value_cut.h"

namespace nestgrad {

namespace {

// A scan of the new graph.
struct Scan {
  NodeId id = -1;
  std::shared_ptr<const GraphBody> body;
  std::vector<NodeId> inputs;
  std::vector<NodeId> now;     // node of the old body -> of the new one, where known
  std::vector<char> computed;  // node of the new body -> computed again by the scans that read it
  std::map<NodeId, Tensor> stacks;
};

class Rematerialize {
 public:
  explicit Rematerialize(const Lowered& from)
      : from_(from),
        old_(*from.graph),
        to_(old_.nodes()),
        readers_(readers_of(old_, std::vector<char>(uz(old_.size()), 1), from.outputs)) {}

  bool is_needed() const {
    for (NodeId id = 0; id < old_.size(); ++id)
      if (old_.node(id).attrs.find<StackAttrs>() && is_read_step_by_step(id)) return true;
    return false;
  }

  Lowered run() {
    for (NodeId id = 0; id < old_.size(); ++id) {
      const GraphNode& n = old_.node(id);
      if (is_scan(n)) to_[id] = rebuild_scan(id);
      else if (n.attrs.find<StackAttrs>()) to_[id] = stack_of(scans_.at(n.inputs[0]), n);
      else to_[id] = to_.copy(id);
    }
    return to_.lowered(from_.inputs, from_.outputs);
  }

 private:
  bool is_read_step_by_step(NodeId stack) const { return all_read_step_by_step(old_, readers_[uz(stack)]); }

  // The stack of a node of a scan's new body, made when it is first asked for.
  Tensor stack_of(Scan& scan, const GraphNode& old) {
    label_like(old);
    return stack_of(scan, scan.now[uz(shown_by(old))], old);
  }
  Tensor stack_of(Scan& scan, NodeId what, const GraphNode& like) {
    Tensor& known = scan.stacks[what];
    if (known.defined()) return known;
    const Tensor node = to_.graph().tensor(scan.id);
    const StackAttrs attrs{scan.body, what, like.attrs.as<StackAttrs>().steps};
    return known = to_.graph().append(*like.op, std::array{node}, attrs, like.loc);
  }

  // The body of one scan while it is made anew.
  struct NewBody {
    Loc loc;  // of the scan
    Graph graph{GraphOptions{}};
    std::map<NodeId, Tensor> xs, consts;                // by what they are outside
    std::map<std::pair<NodeId, NodeId>, Tensor> again;  // computed again: by scan and node of its body

    Tensor input_for(std::map<NodeId, Tensor>& known, NodeId outer, const Spec& spec) {
      Tensor& t = known[outer];
      if (!t.defined()) t = graph.input(spec, "", loc);
      return t;
    }
  };

  // A value of another scan's body: read from where it is kept, or computed again.
  Tensor value_of(NewBody& body, Scan& other, NodeId what, const GraphNode& like) {
    const GraphNode& value = other.body->nodes[uz(what)];
    const int first_x = other.body->carries, first_const = first_x + other.body->xs;
    if (what >= first_const && what < other.body->inputs())
      return body.input_for(body.consts, other.inputs[uz(what)], value.spec);
    if (what >= first_x && what < first_const && other.computed[uz(what)])
      return body.input_for(body.xs, other.inputs[uz(what)], value.spec);
    if (!other.computed[uz(what)])
      return body.input_for(body.xs, stack_of(other, what, like).id(), value.spec);
    Tensor& known = body.again[{other.id, what}];
    if (known.defined()) return known;
    std::vector<Tensor> in;
    for (NodeId i : value.inputs) in.push_back(value_of(body, other, i, like));
    label_like(value);
    return known = body.graph.append(*value.op, in, value.attrs, value.loc);
  }

  // Every node of the old body, in the new one.
  std::vector<Tensor> fill(NewBody& body, const GraphNode& scan) {
    const GraphBody& old = body_of(scan);
    std::vector<Tensor> made;
    for (int i = 0; i < old.inputs(); ++i) {
      const NodeId outer = scan.inputs[uz(i)];
      const GraphNode& from = old_.node(outer);
      if (i < old.carries) {
        made.push_back(body.graph.input(old.spec(i), input_name(old.nodes[uz(i)]), scan.loc));
      } else if (i >= old.carries + old.xs) {
        made.push_back(body.input_for(body.consts, to_[outer].id(), old.spec(i)));
      } else if (from.attrs.find<StackAttrs>()) {
        Scan& other = scans_.at(from.inputs[0]);
        made.push_back(value_of(body, other, other.now[uz(shown_by(from))], from));
      } else {
        made.push_back(body.input_for(body.xs, to_[outer].id(), old.spec(i)));
      }
    }
    for (std::size_t i = made.size(); i < old.nodes.size(); ++i) {
      const GraphNode& value = old.nodes[i];
      std::vector<Tensor> in;
      for (NodeId k : value.inputs) in.push_back(made[uz(k)]);
      label_like(value);
      made.push_back(body.graph.append(*value.op, in, value.attrs, value.loc));
    }
    return made;
  }

  // A scan that computes again what others no longer keep.
  Tensor rebuild_scan(NodeId id) {
    const GraphNode& n = old_.node(id);
    const GraphBody& old = body_of(n);
    label_like(n);
    NewBody body{.loc = n.loc};
    const std::vector<Tensor> made = fill(body, n);
    Closing closing;
    std::vector<NodeId> outer_xs, outer_consts;
    for (int i = 0; i < old.carries; ++i) closing.carries.push_back(made[uz(i)].id());
    for (NodeId out : old.outs) closing.outs.push_back(made[uz(out)].id());
    const std::vector<NodeId> projections = results_of(old_, readers_, id).stacks;
    for (NodeId p : projections) closing.keep.push_back(made[uz(shown_by(old_.node(p)))].id());
    for (const auto& [outer, t] : body.xs) closing.xs.push_back(t.id()), outer_xs.push_back(outer);
    for (const auto& [outer, t] : body.consts)
      closing.consts.push_back(t.id()), outer_consts.push_back(outer);
    const Closed closed = close_body(body.graph, closing);

    Scan scan{.body = closed.body, .now = std::vector<NodeId>(old.nodes.size(), -1)};
    std::vector<Tensor> in;
    for (int i = 0; i < old.carries; ++i) in.push_back(to_[n.inputs[uz(i)]]);
    for (std::size_t i : closed.live_xs) in.push_back(to_.graph().tensor(outer_xs[i]));
    for (std::size_t i : closed.live_consts) in.push_back(to_.graph().tensor(outer_consts[i]));
    for (const Tensor& t : in) scan.inputs.push_back(t.id());
    for (std::size_t k = 0; k < projections.size(); ++k)
      scan.now[uz(shown_by(old_.node(projections[k])))] = closed.keep[k];
    const Tensor node = to_.replace_scan(id, closed.body, in, {});
    scan.id = node.id();
    decide(id, scan);
    scans_.emplace(id, std::move(scan));
    return node;
  }

  // Which values the scans that read them compute again: what lies behind the cheapest cut between them and
  // what there is.
  void decide(NodeId id, Scan& scan) const {
    const GraphBody& body = *scan.body;
    std::vector<char> kept(body.nodes.size(), 0), wanted(body.nodes.size(), 0);
    for (NodeId p : results_of(old_, readers_, id).stacks) {
      const std::size_t what = uz(scan.now[uz(shown_by(old_.node(p)))]);
      if (is_read_step_by_step(p)) wanted[what] = 1;
      else if (!readers_[uz(p)].empty()) kept[what] = 1;
    }
    ValueCut cut(body.nodes.size());
    for (NodeId v = 0; v < static_cast<NodeId>(body.nodes.size()); ++v) {
      const GraphNode& n = body.nodes[uz(v)];
      if (wanted[uz(v)]) cut.want(v);
      if (v >= body.carries + body.xs && v < body.inputs()) continue;  // there anyway
      const bool is_x = v >= body.carries && v < body.carries + body.xs;
      const std::optional<Bytes> computing =
          is_x ? price_of_reading(n.spec) : price_of_computing(body.nodes, n);
      cut.compute(v, computing);
      cut.keep(v, kept[uz(v)] ? price_of_reading(n.spec) : price_of_keeping(n.spec));
      if (!computing) continue;
      for (NodeId i : n.inputs) cut.need(v, i);
    }
    scan.computed = cut.computed();
  }

  const Lowered& from_;
  const Graph& old_;
  Rewriter to_;
  Readers readers_;
  std::map<NodeId, Scan> scans_;  // by their old ids
};

}  // namespace

Lowered rematerialize(const Lowered& from) {
  Rematerialize pass(from);
  return pass.is_needed() ? pass.run() : from;
}

}  // namespace nestgrad
