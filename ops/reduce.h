// What the reductions share: which axes, and the walk over what they reduce.
#pragma once

#include "ops/attrs.h"
#include "ops/ops.h"
#include "ops/strided.h"

namespace nestgrad {

// Reduction nodes keep their axes with extent 1.
const Shape& axes_of(const Attrs& a);
Spec infer_reduce(const OpCall& c);
int reduce_axes(const OpCall& c, int input, int axis);
std::string describe_axes(const Attrs& a);
std::vector<OpSample> reduce_samples();
// Normalised, sorted, without repeats (ShapeError).
std::vector<std::int64_t> reduced_axes(std::string_view op, const std::vector<int>& axes, const Operand& x);
// The shape without the reduced axes.
Tensor drop_axes(Tensor x, const std::vector<std::int64_t>& axes, Loc loc);

// For each output element, the input elements that it is made of: runs of
// `inner` elements. `rows`: the innermost axis is kept, so that a run
// belongs to `inner` different outputs; otherwise a run is reduced to one.
struct ReducePlan {
  bool rows = false;
  std::int64_t inner = 1;
  std::vector<std::int64_t> out_starts;  // input offset of each output element (or run of outputs)
  std::vector<std::int64_t> steps;       // offsets, from a start, of the runs to reduce
  explicit ReducePlan(const OpCall& c);
};

}  // namespace nestgrad
