// Where the values of a scan's steps lie: one stretch of memory for each step and slice, in any order. So a
// scan reads and writes permuted sequences where they are. Internal to the plan.
#pragma once

#include <optional>

#include "engine/slicing.h"

namespace nestgrad {

// A slice's part at `time` begins at at[slice] + time * stride, in bytes.
struct Stepped {
  std::size_t stride = 0;
  std::vector<std::size_t> at;
};

// Of a dense [time, ...] value with these parts at each time; `step`: bytes of one time.
Stepped stepped(const SliceOf& part, std::size_t step);
// Of one that lies in another value as `view` says. Nothing if a part is in pieces there.
std::optional<Stepped> stepped(const SliceOf& part, const Spec& value, const View& view);
// Of one whose every slice is in one piece; parts must be slices of their own.
Stepped slice_by_slice(const SliceOf& part, std::size_t steps);

// Where the elements of the input of a rearrangement lie in its output, if each lies there once.
std::optional<View> inverse(const View& view, const Spec& in, const Spec& out);

}  // namespace nestgrad
