// What a step of a scan takes on a GPU, as far as shapes tell: in the kernel of the whole scan (cuda/scan.cu), and op by op.
// Which of the two a scan is follows from it; numbers never do. The constants fit an H200 (docs/gpu.md), and kernels that are
// compiled for their scans: one that is interpreted takes four or five times as long, and is chosen all the same, since a plan must
// not have other bits for it.
#pragma once

#include <string>

#include "engine/core/graph.h"

namespace nestgrad::cuda {

struct StepTime {
  double in_kernel = 0, op_by_op = 0;  // microseconds, of all slices
};

// body: of one slice.
StepTime step_time(const Graph& body, std::int64_t slices, std::size_t multiprocessors);

// Shared memory that a block needs at least for a step in one kernel: for an op that is not elementwise, what it reads of the step's own
// values, and what it makes if the step reads that again. A kernel may need more.
std::size_t least_shared_memory(const Graph& body);

// A scan is one kernel unless its steps would take this much longer than op by op: a kernel needs no memory for what is between its
// ops, and a recorded run has one node for it instead of one for each op of each step.
constexpr double kPatience = 1.2;

// Why, if it is to run op by op; for people. Example: "a step takes about 9600 us in one kernel, 110 op by op".
std::string why_slow_in_kernel(const StepTime& time);

}  // namespace nestgrad::cuda
