// Readers: who reads the values of a graph, and which values anybody needs.
#pragma once

#include <span>
#include <vector>

#include "engine/core/body.h"

namespace nestgrad {

// Marks what `wanted` needs, not looking behind `cuts`.
std::vector<char> live_nodes(const std::deque<GraphNode>& nodes, std::span<const NodeId> wanted,
                             std::span<const NodeId> cuts);

// The node whose bytes an alias shows; a node that is none of them is its own root.
NodeId root_of_alias(const Graph& graph, NodeId id);

// Values of which each may be written over the one before it, the first over the input `to`: from `node`, the last, to the first.
// An op writes over an operand that it may reuse (Op::may_reuse) or adds to. Empty: there are none, or more than a few.
//   c' = (c + a b) + d e   // {c', c + a b}, for `to` = c
std::vector<NodeId> written_over(const std::deque<GraphNode>& nodes, NodeId to, NodeId node);

// Who reads a value, as which operand; id -1: the caller.
struct Reader {
  NodeId id, operand;
};
// By node, of the live nodes and the caller.
using Readers = std::vector<std::vector<Reader>>;
Readers readers_of(const Graph& graph, const std::vector<char>& live, std::span<const NodeId> outputs);
// Is the reader a scan that cuts this operand along its first axis, a step each?
bool reads_step_by_step(const Graph& graph, const Reader& reader);
// Are these all such scans, and is there one?
bool all_read_step_by_step(const Graph& graph, const std::vector<Reader>& readers);
// Is it a scan that recomputes carries, and begins its segments with this operand (ScanAttrs::recomputes)?
bool begins_segments(const Graph& graph, const Reader& reader);

// The nodes that show what a scan makes. Of readers of live nodes: those that are live.
struct ScanResults {
  std::vector<NodeId> finals, stacks;
};
ScanResults results_of(const Graph& graph, const Readers& readers, NodeId scan);

}  // namespace nestgrad
