// Slicing: a scan over independent slices (sequences, heads) as one scan per slice. A slice runs through all
// steps before the next begins, so that its state stays in the cache, and slices run on as many threads as
// there are. Proved with flow.h on the scan's body.
#pragma once

#include <optional>

#include "engine/core/rewrite.h"
#include "engine/plan/flow.h"
#include "engine/plan/readers.h"

namespace nestgrad {

// What one slice has of a value of the body.
struct SliceOf {
  std::size_t bytes = 0;
  std::vector<std::size_t> at;  // slice -> where it begins in the value, in bytes
  std::vector<char> owner;      // slice -> is it the first of those that have this very part?
  bool partial = false;         // the value is the sum over the slices that have the same part
  // Has slice i the same bytes of the value in both, for every i?
  bool same_bytes(const SliceOf& other) const { return bytes == other.bytes && at == other.at; }
};

struct SlicedBody {
  std::shared_ptr<Graph> graph;       // the body for one slice
  std::vector<NodeId> made;           // node of the body -> node of graph
  std::vector<std::int64_t> extents;  // of the axes along which it is cut
  std::vector<SliceOf> parts;         // by node of the body: of inputs, next carries and stacked values
  int slices() const;
};

// readers: as readers_of(graph, live, ..) tells. Nothing if the slices of the scan's body are not
// independent, or do not lie one after the other in memory.
std::optional<SlicedBody> slice_scan(const Graph& graph, const Readers& readers, NodeId scan);

// Does the graph that was made of another one, scan for scan, add up the same things over slices? What is to
// keep bits must: sums over slices are added up in another order than whole ones. Scans that nobody reads any
// more do not count.
bool sums_alike(const Lowered& made, const Lowered& from);

}  // namespace nestgrad
