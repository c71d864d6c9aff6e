#include "autograd/reverse.h"

#include <algorithm>
#include <iterator>

#include "autograd/missed_paths.h"
#include "engine/core/index.h"
#include "engine/plan/dependence.h"
#include "engine/plan/readers.h"
#include "ops/accumulate.h"
#include "ops/attrs.h"
#include "ops/ops.h"
#include "ops/table.h"

namespace nestgrad {

namespace {

// The level of a node, or the highest one in its body.
int highest_level(const GraphNode& node) {
  int level = node.level;
  if (node.op->kind == OpKind::scan)
    for (const GraphNode& inner : body_of(node).nodes) level = std::max(level, highest_level(inner));
  return level;
}

// The wanted nodes that the ends are made of, in post-order: inputs first, from the first input to the last.
// Ids would not do as order: in which order operands of an expression are called, C++ leaves to the compiler.
// wanted[i] is of node first + i; no older node is wanted.
std::vector<NodeId> in_order_of_inputs(const std::deque<GraphNode>& nodes, std::span<const NodeId> ends,
                                       const std::vector<char>& wanted, NodeId first) {
  struct Visit {
    NodeId id;
    std::size_t next = 0;  // input to look at
  };
  std::vector<NodeId> order;
  std::vector<char> seen(wanted.size(), 0);
  std::vector<Visit> path;
  const auto enter = [&](NodeId id) {
    if (id < first) return;
    const auto at = uz(id - first);
    if (wanted[at] && !seen[at]) seen[at] = 1, path.push_back({id});
  };
  for (NodeId end : ends) {
    enter(end);
    while (!path.empty()) {
      Visit& visit = path.back();
      const std::vector<NodeId>& inputs = nodes[uz(visit.id)].inputs;
      if (visit.next < inputs.size()) {
        enter(inputs[visit.next++]);
      } else {
        order.push_back(visit.id);
        path.pop_back();
      }
    }
  }
  return order;
}

}  // namespace

Reverse::Reverse(Graph& graph, std::span<const GradSeed> seeds, std::span<const NodeId> wrt,
                 std::span<const Tensor> initial)
    : graph_(graph) {
  NodeId end = 0;
  for (const GradSeed& s : seeds) end = std::max(end, s.value.id() + 1);
  for (NodeId id : wrt) end = std::max(end, id + 1);
  first_ = end;
  for (NodeId id : wrt) first_ = std::min(first_, id);
  std::vector<char> marked(at(end), 0);
  for (NodeId id : wrt) marked[at(id)] = 1;
  depends_ = dependents(graph.nodes(), std::move(marked), Follow::derivatives, first_);  // by a derivative
  std::vector<NodeId> ends;
  for (const GradSeed& s : seeds) ends.push_back(s.value.id());
  order_ = in_order_of_inputs(graph.nodes(), ends, depends_, first_);
  level_ = std::max(context().emit.level, 1);
  for (NodeId id : order_) level_ = std::max(level_, 1 + highest_level(graph.node(id)));
  cotangents_.resize(at(end));
  for (std::size_t i = 0; i < initial.size(); ++i)
    if (initial[i].defined()) cotangents_[at(wrt[i])] = initial[i];
  for (const GradSeed& s : seeds) add(s.value.id(), s.cotangent);
}

Tensor Reverse::cotangent(NodeId id) const { return cotangents_[at(id)]; }

void Reverse::add(NodeId id, Tensor ct) {
  if (!depends(id)) return;
  ct = sum_to(ct, graph_.node(id).spec.shape);  // undoes broadcasting, here and nowhere else
  if (waits(id, ct)) return;
  add_ranges(id);  // first: each element is added up in the order in which its terms came
  accumulate(cotangents_[at(id)], ct);
}

bool Reverse::waits(NodeId id, Tensor ct) {
  const GraphNode& n = ct.graph().node(ct.id());
  if (n.op != &pad_op) return false;
  const auto [axis, before, after] = n.attrs.as<PadAttrs>();
  const std::int64_t end = n.spec.shape[uz(axis)] - after;
  if (before == end) return false;
  Ranges& all = ranges_[id];
  const auto next = all.by_begin.lower_bound(before);
  const bool meets = (next != all.by_begin.end() && next->first < end) ||
                     (next != all.by_begin.begin() && std::prev(next)->second.end > before);
  if (meets || (axis != all.axis && !all.by_begin.empty())) add_ranges(id);
  Ranges& now = ranges_[id];
  now.axis = static_cast<int>(axis);
  now.last = context().emit;
  now.by_begin.emplace(before, Ranges::Range{end, ct, ct.graph().tensor(n.inputs[0])});
  return true;
}

void Reverse::add_ranges(NodeId id) {
  const auto found = ranges_.find(id);
  if (found == ranges_.end()) return;
  const Ranges all = std::move(found->second);
  ranges_.erase(found);
  ContextGuard guard;
  context().emit = all.last;
  if (all.by_begin.size() == 1) return accumulate(cotangents_[at(id)], all.by_begin.begin()->second.padded);
  const Spec& whole = graph_.node(id).spec;
  std::vector<Tensor> parts;
  std::int64_t reached = 0;
  const auto zeros_to = [&](std::int64_t begin) {
    if (begin == reached) return;
    Shape gap = whole.shape;
    gap[uz(all.axis)] = begin - reached;
    parts.push_back(zeros(whole.dtype, gap));
  };
  for (const auto& [begin, range] : all.by_begin) {
    zeros_to(begin);
    parts.push_back(range.inside);
    reached = range.end;
  }
  zeros_to(whole.shape[uz(all.axis)]);
  accumulate(cotangents_[at(id)], concat(parts, all.axis));
}

void Reverse::run() {
  ContextGuard guard;
  for (auto next = order_.rbegin(); next != order_.rend(); ++next) {
    const NodeId id = *next;
    const GraphNode& n = graph_.node(id);
    const bool reached = n.op->kind == OpKind::scan ? scans_.contains(id)
                                                    : cotangents_[at(id)].defined() || ranges_.contains(id);
    if (!reached) continue;
    ThreadContext::Emit& state = context().emit;
    state.level = level_;
    state.vjp_of = graph_.tensor(id);
    state.loc = n.loc;
    state.scope = n.scope;
    add_ranges(id);
    const Tensor ct = cotangents_[at(id)];
    switch (n.op->kind) {
      case OpKind::input:
      case OpKind::constant:
        break;
      case OpKind::final:
        accumulate(scans_[n.inputs[0]].finals[n.attrs.as<FinalAttrs>().carry], ct);
        break;
      case OpKind::stack:
        accumulate(scans_[n.inputs[0]].stacks[n.attrs.as<StackAttrs>().node], ct);
        break;
      case OpKind::scan:
        through_scan(id);
        break;
      case OpKind::value:
        through_op(id);
        break;
    }
  }
}

void Reverse::through_op(NodeId id) {
  const GraphNode& n = graph_.node(id);
  if (!n.op->vjp) return;
  std::vector<Tensor> in;
  for (NodeId i : n.inputs) in.push_back(graph_.tensor(i));
  const Tensor ct = cotangents_[at(id)];
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (!depends(n.inputs[i]) || !passes(n, i, graph_.node(n.inputs[i]))) continue;
    add(n.inputs[i], n.op->vjp({in, graph_.tensor(id), ct, n.attrs, static_cast<int>(i)}));
  }
}

// ---- pull_back: seeds and wrt as nodes of one graph, then Reverse ----

namespace {

// Adds to `ct`, of x outside of g, what reaches x through other tensors that ops outside make of it.
void through_outside(Graph& g, Tensor x, std::span<const GradSeed> seeds, Tensor& ct) {
  const std::vector<Capture> ways = captures_made_of(g, x, seeds);
  if (ways.empty()) return;
  std::vector<NodeId> ids;
  for (const Capture& way : ways) ids.push_back(way.id);
  Reverse reverse(g, seeds, ids, {});
  reverse.run();
  std::vector<GradSeed> outside;
  for (const Capture& way : ways)
    if (const Tensor of_way = reverse.cotangent(way.id); of_way.defined())
      outside.push_back({way.outer, of_way});
  if (!outside.empty()) ct = pull_back(outside, std::span(&x, 1), std::span(&ct, 1))[0];
}

}  // namespace

std::vector<Tensor> pull_back(std::span<const GradSeed> seeds, std::span<const Tensor> wrt,
                              std::span<const Tensor> initial) {
  if (seeds.empty()) {
    std::vector<Tensor> out(initial.begin(), initial.end());
    out.resize(wrt.size());
    return out;
  }
  const OpenGraph open(seeds[0].value);
  // Seeds of an outer graph cannot depend on anything inside; the deepest seed decides where the walk runs.
  Graph* g = &seeds[0].value.graph();
  for (const GradSeed& s : seeds)
    if (s.value.graph().depth() > g->depth()) g = &s.value.graph();
  std::vector<GradSeed> here;
  for (const GradSeed& s : seeds) here.push_back({g->tensor(g->lift(s.value)), s.cotangent});
  std::vector<NodeId> ids;
  std::vector<std::size_t> position;
  std::vector<Tensor> starts;
  std::vector<Tensor> out(initial.begin(), initial.end());
  out.resize(wrt.size());
  for (std::size_t i = 0; i < wrt.size(); ++i) {
    if (!g->descends_from(wrt[i].graph())) continue;
    ids.push_back(g->lift(wrt[i]));
    position.push_back(i);
    starts.push_back(out[i]);
  }
  Reverse reverse(*g, here, ids, starts);
  reverse.run();
  for (std::size_t k = 0; k < ids.size(); ++k) {
    const std::size_t i = position[k];
    out[i] = reverse.cotangent(ids[k]);
    if (&wrt[i].graph() != g) through_outside(*g, wrt[i], here, out[i]);
  }
  return out;
}

}  // namespace nestgrad
