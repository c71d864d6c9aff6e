// The pass that computes large values again where a derivative reads them, outside of loops.
#include <algorithm>
#include <limits>

#include "engine/core/index.h"
#include "engine/plan/passes.h"
#include "engine/plan/recompute.h"
#include "engine/plan/value_cut.h"

namespace nestgrad {

namespace {

// Ops on the way from what is kept to what is computed again. All that is on a longer way would be made at once,
// by the first that reads of it, and wait for the others.
constexpr int kLongest = 16;

// What it costs to keep a value that is not there anyway: its way through the memory, and as much for its place
// there, which other values could have.
Bytes price_of_a_place(const Spec& spec) { return 2 * price_of_keeping(spec); }

struct Uses {
  std::vector<char> derived;  // by node: does a derivative of it read it?
  std::vector<char> kept;     // is it there anyway, whoever reads it?
};

// What a scan reads stays until the last scan has run: its values may be pulled (Compiler::find_last_readers).
Uses uses_of(const Lowered& from) {
  const Graph& g = *from.graph;
  Uses out{std::vector<char>(uz(g.size()), 0), std::vector<char>(uz(g.size()), 0)};
  for (NodeId id : from.outputs) out.kept[uz(id)] = 1;
  for (NodeId id = g.size(); id-- > 0;) {
    const GraphNode& n = g.node(id);
    for (NodeId in : n.inputs) {
      if (n.level > g.node(in).level) out.derived[uz(in)] = 1;
      if (is_scan(n) || (n.op->is_alias && out.kept[uz(id)])) out.kept[uz(in)] = 1;
    }
  }
  return out;
}

// By node: is it computed again? What lies behind the cheapest cut between what there is and what derivatives
// read.
std::vector<char> computed_again(const Lowered& from, Bytes least) {
  const Graph& g = *from.graph;
  const Uses uses = uses_of(from);
  const auto may_be = [&](const GraphNode& n) {
    return n.op->kind == OpKind::value && static_cast<Bytes>(n.spec.bytes()) >= least;
  };
  const auto is_there = [](const GraphNode& n) {
    return n.op->kind == OpKind::input || n.op->kind == OpKind::constant;
  };
  ValueCut cut(uz(g.size()));
  bool any = false;
  for (NodeId v = 0; v < g.size(); ++v) {
    const GraphNode& n = g.node(v);
    if (is_there(n)) continue;
    std::optional<Bytes> computing;
    if (may_be(n)) computing = price_of_computing(g.nodes(), n);
    if (uses.derived[uz(v)]) cut.want(v);
    cut.compute(v, computing);
    cut.keep(v, uses.kept[uz(v)] ? price_of_reading(n.spec) : price_of_a_place(n.spec));
    if (!computing) continue;
    any = any || *computing > 0;
    for (NodeId in : n.inputs) cut.need(v, in);
  }
  std::vector<char> again(uz(g.size()), 0);
  if (!any) return again;
  const std::vector<char> computed = cut.computed();
  std::vector<int> way(uz(g.size()), 0);
  for (NodeId v = 0; v < g.size(); ++v) {
    if (is_there(g.node(v)) || !computed[uz(v)]) continue;
    int longest = 0;
    for (NodeId in : g.node(v).inputs) longest = std::max(longest, way[uz(in)]);
    if (longest < kLongest) again[uz(v)] = 1, way[uz(v)] = longest + 1;
  }
  return again;
}

}  // namespace

Lowered recompute_values(const Lowered& from, const PlanOptions& options) {
  const Graph& g = *from.graph;
  const std::vector<char> again = computed_again(
      from,
      static_cast<Bytes>(std::min(options.recompute_above, std::size_t{std::numeric_limits<Bytes>::max()})));
  if (std::ranges::count(again, 1) == 0) return from;
  return recompute(from, {.reads_copy =
                              [&](NodeId reader, NodeId in) {
                                return again[uz(in)] && g.node(reader).level > g.node(in).level;
                              },
                          .is_copied_too = [&](NodeId, NodeId in) { return again[uz(in)] != 0; }});
}

}  // namespace nestgrad
