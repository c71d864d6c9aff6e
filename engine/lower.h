// Lowering: what a plan compiles is not the traced graph but an equal, smaller one: dead nodes gone, cheaper
// equal expressions taken (Op::simplify), ops without a kernel expanded, checkpoint regions recomputed where
// a derivative reads them.
#pragma once

#include "engine/plan.h"
#include "engine/rewrite.h"

namespace nestgrad {

// A plan's graph is lowered once, with the bodies of its scans: what changes roundings is decided before
// anything moves between bodies. Each body is then lowered again when it is compiled (of_scan), perhaps for one
// slice: expressions of the same bits, and stacked products.
Lowered lower(const std::deque<Node>& nodes, const std::vector<NodeId>& inputs,
              const std::vector<NodeId>& outputs, const PlanOptions& options, bool of_scan);

// Marks what `wanted` needs, not looking behind `cuts`.
std::vector<char> live_nodes(const std::deque<Node>& nodes, std::span<const NodeId> wanted,
                             std::span<const NodeId> cuts);

// Who reads a value, as which operand; id -1: the caller.
struct Reader {
  NodeId id, operand;
};
// By node, of the live nodes and the caller.
using Readers = std::vector<std::vector<Reader>>;
Readers readers_of(const Graph& graph, const std::vector<char>& live, std::span<const NodeId> outputs);
// Is the reader a scan that cuts this operand along its first axis, a step each?
bool reads_step_by_step(const Graph& graph, const Reader& reader);

}  // namespace nestgrad
