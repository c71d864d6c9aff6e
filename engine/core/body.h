// Body: a closed, immutable piece of graph that a node carries: the step of a scan, the two passes of
// custom_vjp. Bodies that are equal down to the lines they were written on are the same object: a loop that
// is unrolled ten thousand times has one.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/core/graph.h"

namespace nestgrad {

struct GraphBody {
  std::deque<GraphNode> nodes;   // inputs first, in the order carries, xs, consts
  int carries = 0;               // number of carried inputs
  int xs = 0;                    // number of per-step inputs (without the time axis)
  int consts = 0;                // number of inputs that stay the same
  std::vector<NodeId> outs;      // next carries (scan), results (custom_vjp)
  bool has_collectives = false;  // ops over processes, also in bodies of its own
  std::size_t hash = 0;
  // Equal where the computation is, wherever it was written; close_body() gives it.
  std::uint64_t computation = 0;

  bool operator==(const GraphBody& other) const { return computation == other.computation; }
  int inputs() const { return carries + xs + consts; }
  const Spec& spec(NodeId id) const { return nodes[static_cast<std::size_t>(id)].spec; }
};

// Is it an op over processes, or has it a body with one?
bool goes_over_processes(const GraphNode& n);

// The step of a scan.
inline const GraphBody& body_of(const GraphNode& scan) { return *scan.attrs.as<ScanAttrs>().body; }
inline bool is_scan(const GraphNode& n) { return n.attrs.find<ScanAttrs>() != nullptr; }

// A graph of which only what `outs` and `keep` need remains, its inputs in the given order. `keep` receives
// the new ids. `replace[id]` >= 0 names the node that stands for node id (used instead of it everywhere).
struct Closing {
  std::vector<NodeId> carries, xs, consts;  // input nodes in the order wanted; dead xs and consts are dropped
  std::vector<NodeId> outs, keep;
  std::vector<NodeId> replace;
};
struct Closed {
  std::shared_ptr<const GraphBody> body;
  std::vector<std::size_t> live_xs, live_consts;  // positions in Closing::xs / consts that remain
  std::vector<NodeId> keep;
};
Closed close_body(const Graph& graph, const Closing& closing);

// Re-emits the body's nodes with its inputs replaced by `inputs`; returns the tensor of every node (scan
// nodes too).
std::vector<Tensor> inline_body(const GraphBody& body, std::span<const Tensor> inputs);

}  // namespace nestgrad
