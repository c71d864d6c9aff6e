// scan: a loop over time as one node of the graph.
//
//   ScanResult r = scan([&](const Tensors& carry, const Tensors& x) -> StepOutput {
//     Tensor w = carry[0] - lr * grad(loss(carry[0], x[0]), {carry[0]})[0];
//     return {{w}, {predict(w, x[0])}};
//   }, {w0}, {tokens});                       // tokens [time, ..]
//   r.carries[0]   the last w;  r.ys[0]  [time, ..]
//
// The body may use any tensor of the graphs around it. Inside it, carries and xs are variables of their own:
// an inner gradient with respect to an outer tensor is refused (GradError) where it would miss a path through
// a carry or an x that comes from that tensor. What ops outside make of the tensor, and the body reads, is
// differentiated through. Graph size does not depend on the number of steps.
// Its derivative is a scan in the other direction that reads the body's values; whether those are stored or
// recomputed (checkpoint_every) is decided by the plan and never changes a bit.
#pragma once

#include "engine/core/body.h"

namespace nestgrad {

using Tensors = std::vector<Tensor>;

struct ScanOptions {
  bool reverse = false;  // from the last time to the first; xs and ys stay indexed by time
  // 0: store what the derivative reads; n: keep every n-th carry, recompute the rest.
  int checkpoint_every = 0;
  std::int64_t steps = -1;  // needed when there are no xs
};

struct StepOutput {
  Tensors carries, ys;
};

struct ScanResult {
  Tensors carries;  // after the last step
  Tensors ys;       // [time, ...]
};

using StepFn = std::function<StepOutput(const Tensors& carries, const Tensors& xs)>;

// init: carries before the first step. xs: [time, ...] each, one slice per step; ShapeError where there is no step at all.
ScanResult scan(const StepFn& step, const Tensors& init, const Tensors& xs, ScanOptions options = {},
                Loc loc = Loc::current());

// ---- the node and its projections ----
Tensor scan_node(std::shared_ptr<const GraphBody> body, const Tensors& inputs, std::int64_t steps,
                 bool reverse, int every, Loc loc);
Tensor scan_final(Tensor scan, std::int64_t carry);      // value of a carry after the last step
Tensor scan_stack(Tensor scan, std::int64_t body_node);  // [time, ...] value of any body node at every step

}  // namespace nestgrad
