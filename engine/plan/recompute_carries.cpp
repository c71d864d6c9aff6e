// The pass that makes carries again instead of keeping them.
//
// The derivative of a loop of learning reads the weights of every step: they are most of what it keeps. But
// the weights of the next step often follow from those of this one and from little else, which is kept anyway
// (W' = W + k'g). Then only those of every n-th step are kept, and another loop
// makes those between again, n steps at a time, just before they are read:
//
//   forward = scan W: .. g = .., W' = W + k'g            keeps g, and W of every n-th step
//   again   = scan W: W' = W + k'g                       from W of every n-th step; reads g
//   back    = scan dW: ..                                reads W of `again`, step by step
//
// The products are those of the first loop, so that the bits are the same.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "engine/core/index.h"
#include "engine/plan/passes.h"
#include "engine/plan/readers.h"
#include "engine/plan/slicing.h"
#include "engine/plan/value_cut.h"

namespace nestgrad {

namespace {

// A segment's values for one slice are to stay in the second-level cache.
constexpr std::size_t kSegmentBytes = 512 << 10;
constexpr int kMostSteps = 16;  // of a segment

// What of a scan is recomputed, in terms of its body.
struct Choice {
  std::vector<NodeId> carries;      // that are made again
  std::vector<char> computed;       // by node: part of what the new scan computes
  std::map<NodeId, NodeId> stacks;  // value -> the stack that has it
  std::vector<NodeId> served;       // values whose stacks are read from the new scan instead
  int every = 0;
};

class Chooser {
 public:
  Chooser(const Graph& graph, const Readers& readers, NodeId scan)
      : graph_(graph), readers_(readers), scan_(scan), body_(body_of(graph.node(scan))) {}

  std::optional<Choice> run(bool slice) {
    find_stacks();
    if (served_.empty() || *served_.begin() >= body_.carries) return std::nullopt;
    find_computed();
    Choice out{.computed = needed()};
    for (NodeId c = 0; c < body_.carries; ++c)
      if (out.computed[uz(c)]) out.carries.push_back(c);
    for (NodeId v : served_)
      if (out.computed[uz(v)]) out.served.push_back(v);
    if (out.carries.empty() || out.served.empty()) return std::nullopt;
    out.stacks = stacks_;
    out.every = steps_of_segment(out.served, slice);
    if (out.every < 2) return std::nullopt;
    return out;
  }

 private:
  // What only scans read, step by step, may be made again; other stacks are there anyway.
  void find_stacks() {
    there_.assign(body_.nodes.size(), 0);
    for (NodeId stack : results_of(graph_, readers_, scan_).stacks) {
      if (readers_[uz(stack)].empty()) continue;
      const NodeId what = graph_.node(stack).attrs.as<StackAttrs>().node;
      if (!stacks_.emplace(what, stack).second) continue;
      if (all_read_step_by_step(graph_, readers_[uz(stack)])) served_.insert(what);
      else there_[uz(what)] = 1;
    }
  }

  // The cheapest cut between what there is in a step and what is to be served. A carry costs nothing to
  // compute once what it is next can be had.
  void find_computed() {
    const auto size = static_cast<NodeId>(body_.nodes.size());
    ValueCut cut(body_.nodes.size());
    for (NodeId v = 0; v < size; ++v) {
      const GraphNode& n = body_.nodes[uz(v)];
      if (served_.contains(v)) cut.want(v);
      if (v >= body_.carries + body_.xs && v < body_.inputs()) continue;  // there anyway
      const Bytes keeping = there_[uz(v)] ? price_of_reading(n.spec) : price_of_keeping(n.spec);
      // A carry that is made again is written and read, too, though in the cache.
      cut.keep(v, v < body_.carries ? keeping - keeping / 8 : keeping);
      if (v < body_.carries) {
        cut.need(v, body_.outs[uz(v)]);
        continue;
      }
      const bool is_x = v < body_.inputs();
      const std::optional<Bytes> running = is_x ? price_of_reading(n.spec) : price_of_running(body_.nodes, n);
      cut.compute(v, running);
      if (!running) continue;
      for (NodeId i : n.inputs) cut.need(v, i);
    }
    computed_ = cut.computed();
  }

  // Of what may be computed, what is served, or needed for that.
  std::vector<char> needed() const {
    std::vector<char> out(body_.nodes.size(), 0);
    std::vector<NodeId> todo;
    const auto take = [&](NodeId v) {
      const bool is_input = v >= body_.carries && v < body_.inputs();
      if (!is_input && computed_[uz(v)] && !std::exchange(out[uz(v)], 1)) todo.push_back(v);
    };
    for (NodeId v : served_) take(v);
    while (!todo.empty()) {
      const NodeId v = todo.back();
      todo.pop_back();
      if (v < body_.carries) take(body_.outs[uz(v)]);
      for (NodeId i : body_.nodes[uz(v)].inputs) take(i);
    }
    return out;
  }

  int steps_of_segment(const std::vector<NodeId>& served, bool slice) const {
    std::optional<SlicedBody> sliced;
    if (slice) sliced = slice_scan(graph_, readers_, scan_);
    std::size_t bytes = 0;  // that one step serves
    for (NodeId v : served) bytes += sliced ? sliced->parts[uz(v)].bytes : body_.spec(v).bytes();
    const auto steps = graph_.node(scan_).attrs.as<ScanAttrs>().steps;
    const auto fit = static_cast<std::int64_t>(kSegmentBytes / std::max<std::size_t>(bytes, 1));
    return static_cast<int>(std::min({fit, std::int64_t{kMostSteps}, steps / 2}));
  }

  const Graph& graph_;
  const Readers& readers_;
  const NodeId scan_;
  const GraphBody& body_;
  std::map<NodeId, NodeId> stacks_;  // value -> its stack
  std::set<NodeId> served_;          // those that only scans read, step by step
  std::vector<char> there_, computed_;
};

class AddScans {
 public:
  AddScans(const Lowered& from, const std::map<NodeId, Choice>& choices)
      : from_(from), old_(*from.graph), choices_(choices), to_(old_.nodes()) {}

  Lowered run() {
    for (NodeId id = 0; id < old_.size(); ++id) {
      if (to_[id].defined()) continue;  // a stack that has been made already
      to_[id] = to_.copy(id);
      if (const auto choice = choices_.find(id); choice != choices_.end()) add_scan(id, choice->second);
    }
    return to_.lowered(from_.inputs, from_.outputs);
  }

  // By scan of the old graph, that of the new one which recomputes its carries.
  const std::map<NodeId, NodeId>& added() const { return added_; }

 private:
  Tensor stack_of(Tensor scan, BodyPtr body, NodeId what, const GraphNode& like) {
    label_like(like);
    const StackAttrs attrs{std::move(body), what, like.attrs.as<StackAttrs>().steps};
    return to_.graph().append(*like.op, std::array{scan}, attrs, like.loc);
  }
  // The stack of a value of the scan itself: one that the old graph has, or a new one.
  Tensor kept(NodeId scan, const Choice& choice, NodeId what) {
    const auto old = choice.stacks.find(what);
    const GraphNode& like =
        old_.node(old == choice.stacks.end() ? choice.stacks.begin()->second : old->second);
    if (old != choice.stacks.end() && !choice.computed[uz(what)]) {
      if (!to_[old->second].defined()) to_[old->second] = to_.copy(old->second);
      return to_[old->second];
    }
    return stack_of(to_[scan], like.attrs.as<StackAttrs>().body, what, like);
  }

  void add_scan(NodeId id, const Choice& choice) {
    const GraphNode& scan = old_.node(id);
    const ScanAttrs& attrs = scan.attrs.as<ScanAttrs>();
    const GraphBody& body = *attrs.body;
    Graph graph{GraphOptions{}};
    std::vector<Tensor> made(body.nodes.size());
    Closing closing;
    std::vector<Tensor> carried, xs, consts;
    const auto input = [&](NodeId v, std::vector<NodeId>& list) {
      made[uz(v)] = graph.input(body.spec(v), input_name_of(body, v), scan.loc);
      list.push_back(made[uz(v)].id());
    };
    for (NodeId c : choice.carries) {
      input(c, closing.carries);
      carried.push_back(kept(id, choice, c));
    }
    const auto give = [&](NodeId v) {
      if (made[uz(v)].defined() || choice.computed[uz(v)]) return;
      const bool is_x = v >= body.carries && v < body.inputs();
      const bool is_const = v >= body.carries + body.xs && v < body.inputs();
      input(v, is_const ? closing.consts : closing.xs);
      (is_const ? consts : xs).push_back(is_x ? to_[scan.inputs[uz(v)]] : kept(id, choice, v));
    };
    for (NodeId c : choice.carries) give(body.outs[uz(c)]);
    for (NodeId v = body.inputs(); v < static_cast<NodeId>(body.nodes.size()); ++v) {
      if (!choice.computed[uz(v)]) continue;
      const GraphNode& n = body.nodes[uz(v)];
      std::vector<Tensor> in;
      for (NodeId i : n.inputs) give(i), in.push_back(made[uz(i)]);
      label_like(n);
      made[uz(v)] = graph.append(*n.op, in, n.attrs, n.loc);
    }
    for (NodeId c : choice.carries) closing.outs.push_back(made[uz(body.outs[uz(c)])].id());
    for (NodeId v : choice.served) closing.keep.push_back(made[uz(v)].id());
    const Closed closed = close_body(graph, closing);

    std::vector<Tensor> in = carried;
    for (std::size_t i : closed.live_xs) in.push_back(xs[i]);
    for (std::size_t i : closed.live_consts) in.push_back(consts[i]);
    label_like(scan);
    const ScanAttrs new_attrs{closed.body, attrs.steps, attrs.reverse, choice.every, true};
    const Tensor added = to_.graph().append(*scan.op, in, new_attrs, scan.loc);
    added_.emplace(id, added.id());
    for (std::size_t k = 0; k < choice.served.size(); ++k) {
      const NodeId was = choice.stacks.at(choice.served[k]);
      to_[was] = stack_of(added, closed.body, closed.keep[k], old_.node(was));
    }
  }

  static std::string input_name_of(const GraphBody& body, NodeId v) {
    const GraphNode& n = body.nodes[uz(v)];
    return n.op->kind == OpKind::input ? input_name(n) : "";
  }

  const Lowered& from_;
  const Graph& old_;
  const std::map<NodeId, Choice>& choices_;
  Rewriter to_;
  std::map<NodeId, NodeId> added_;
};

// Has each slice of a scan that recomputes carries the same parts as that of the scan that had them, and of
// those that read them? Only then
// can a slice have its values made again for itself.
class SlicesAlike {
 public:
  explicit SlicesAlike(const Lowered& made)
      : graph_(*made.graph),
        readers_(readers_of(graph_, live_nodes(graph_.nodes(), made.outputs, made.inputs), made.outputs)) {}

  bool operator()(NodeId scan) {
    const GraphNode& n = graph_.node(scan);
    for (NodeId c = 0; c < body_of(n).carries; ++c) {
      const GraphNode& begin = graph_.node(n.inputs[uz(c)]);
      const SliceOf mine = part(scan, c), first = part(begin.inputs[0], begin.attrs.as<StackAttrs>().node);
      if (mine.partial || first.partial || !mine.same_bytes(first)) return false;
    }
    for (NodeId stack : results_of(graph_, readers_, scan).stacks) {
      const SliceOf made = part(scan, graph_.node(stack).attrs.as<StackAttrs>().node);
      for (const Reader& r : readers_[uz(stack)]) {
        if (!reads_step_by_step(graph_, r) || made.partial || !made.same_bytes(part(r.id, r.operand)))
          return false;
        const int every = graph_.node(r.id).attrs.as<ScanAttrs>().every;
        if (every != 0 && every != n.attrs.as<ScanAttrs>().every) return false;
      }
    }
    return true;
  }

 private:
  SliceOf part(NodeId scan, NodeId what) {
    const auto [at, is_new] = sliced_.try_emplace(scan);
    if (is_new) at->second = slice_scan(graph_, readers_, scan);
    if (at->second) return at->second->parts[uz(what)];
    return {body_of(graph_.node(scan)).spec(what).bytes(), {0}, {1}, false};
  }

  const Graph& graph_;
  Readers readers_;
  std::map<NodeId, std::optional<SlicedBody>> sliced_;
};

}  // namespace

Lowered recompute_carries(const Lowered& from, const PlanOptions& options) {
  const Graph& graph = *from.graph;
  const Readers readers =
      readers_of(graph, live_nodes(graph.nodes(), from.outputs, from.inputs), from.outputs);
  std::map<NodeId, Choice> choices;
  for (NodeId id = 0; id < graph.size(); ++id)
    if (is_scan(graph.node(id)) && graph.node(id).attrs.as<ScanAttrs>().every == 0)
      if (auto choice = Chooser(graph, readers, id).run(options.slice))
        choices.emplace(id, std::move(*choice));
  while (!choices.empty()) {
    AddScans pass(from, choices);
    Lowered made = pass.run();
    if (!options.slice) return made;
    SlicesAlike alike(made);
    std::vector<NodeId> unlike;
    for (const auto& [scan, again] : pass.added())
      if (!alike(again)) unlike.push_back(scan);
    if (unlike.empty()) return made;
    for (NodeId scan : unlike) choices.erase(scan);
  }
  return from;
}

}  // namespace nestgrad
