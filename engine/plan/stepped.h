// Where the values of a scan's steps lie: one stretch of memory for each step and slice, in any order. So a
// scan reads and writes permuted sequences where they are.
#pragma once

#include <functional>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "engine/plan/readers.h"
#include "engine/plan/slicing.h"

namespace nestgrad {

// A slice's part at `time` begins at at[slice] + time * stride, in bytes.
struct Stepped {
  std::size_t stride = 0;
  std::vector<std::size_t> at;
};

// Of a dense [time, ...] value with these parts at each time; `step`: bytes of one time.
Stepped stepped(const SliceOf& part, std::size_t step);
// Of one that lies in another value as `view` says. Nothing if a part is in pieces there.
std::optional<Stepped> stepped(const SliceOf& part, const Spec& value, const OpView& view);
// Of one whose every slice is in one piece; parts must be slices of their own.
Stepped slice_by_slice(const SliceOf& part, std::size_t steps);

// Where the elements of the input of a rearrangement lie in its output, if each lies there once.
std::optional<OpView> inverse(const OpView& view, const Spec& in, const Spec& out);

// What need not lie in the plain order.
struct StepLayouts {
  std::unordered_set<NodeId> read_in_place;            // rearrangements that only scans read, where they lie
  std::unordered_map<NodeId, NodeId> written_as;       // stack -> its rearrangement, which is written instead
  std::unordered_map<NodeId, Stepped> slice_by_slice;  // stacks that only scans with the same slices read
};
// readers: as readers_of(graph, live, ..) tells; part_of: what a slice of a scan has of a value of its body.
StepLayouts lay_out_steps(const Graph& graph, const std::vector<char>& live, const Readers& readers,
                          const std::function<SliceOf(NodeId scan, NodeId what)>& part_of);

}  // namespace nestgrad
