#include "engine/plan/spread.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/core/body.h"
#include "engine/core/index.h"
#include "engine/core/node_text.h"

namespace nestgrad {

namespace {

enum class Spread : std::uint8_t { any, same, own };  // any: made of constants alone

[[noreturn]] void fail(const std::deque<GraphNode>& nodes, NodeId id, const std::string& problem) {
  throw GraphError(fmt::format(
      "[processes] {} {}: own() says of an input that it is each process's own, vary() makes that of what is the "
      "same in all, all_sum() the other way round",
      describe(nodes, id), problem));
}

Spread spread_of(const std::deque<GraphNode>& nodes, NodeId id, const std::vector<Spread>& known) {
  const GraphNode& n = nodes[uz(id)];
  Spread all = Spread::any;
  NodeId first = -1;
  for (const NodeId in : n.inputs) {
    const Spread one = known[uz(in)];
    if (one == Spread::any) continue;
    if (all != Spread::any && one != all)
      fail(
          nodes, id,
          fmt::format(
              "joins {}, which is {}, with {}, which is not, so that a gradient would be a part of the whole",
              describe(nodes, first),
              all == Spread::same ? "the same in all processes" : "each process's own", describe(nodes, in)));
    if (all == Spread::any) all = one, first = in;
  }
  switch (goes_over_processes(n) ? n.op->processes : OpProcesses::none) {
    case OpProcesses::none:
      return all;
    case OpProcesses::input_to_own:
      if (all != Spread::any && nodes[uz(n.inputs[0])].op->kind != OpKind::input)
        fail(nodes, id, fmt::format("says it of {}, which is no input", describe(nodes, n.inputs[0])));
      return Spread::own;
    case OpProcesses::same_to_own:
      if (all == Spread::own) fail(nodes, id, "wants what is the same in all processes");
      return Spread::own;
    case OpProcesses::own_to_own:
    case OpProcesses::own_to_same:
      if (all == Spread::same) fail(nodes, id, "wants what is each process's own");
      return n.op->processes == OpProcesses::own_to_own ? Spread::own : Spread::same;
  }
  return all;
}

void walk(const std::deque<GraphNode>& nodes, Spread inputs) {
  std::vector<Spread> known;
  for (NodeId id = 0; id < std::ssize(nodes); ++id) {
    const GraphNode& n = nodes[uz(id)];
    known.push_back(n.op->kind == OpKind::input ? inputs : spread_of(nodes, id, known));
    // What goes into a loop is of one kind, and so is what it carries.
    for (const BodyPtr& body : n.attrs.bodies())
      if (body->has_collectives) walk(body->nodes, known.back());
  }
}

}  // namespace

void check_spread(const std::deque<GraphNode>& nodes) {
  if (std::ranges::any_of(nodes, [](const GraphNode& n) { return goes_over_processes(n); }))
    walk(nodes, Spread::same);
}

}  // namespace nestgrad
