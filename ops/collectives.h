// Collectives: ops over the processes of a run, differentiable to any order. All processes trace the same program; a value is
// either the same in each of them (weights, the loss), or each process's own (its part of a sequence).
//
//   const ProcessGroup all(open_processes());
//   x = own(x, all), y = own(y, all);                           // inputs: this process's part of a batch
//   Tensor w = vary(weights, all);                              // the same everywhere -> each process's own copy
//   Tensor loss = all_sum(sum(square(matmul(x, w) - y)), all);  // each one's own -> the same everywhere
//   Tensor g = grad(loss, weights);                             // the whole gradient, the same everywhere
//
// Inputs are the same everywhere unless own() says otherwise; constants are of either kind. The derivative of vary() is
// all_sum(), and the other way round: a weight that each process reads for itself has the sum of all their cotangents. A plan
// with an op that joins values of both kinds is refused (GraphError): its gradient would be a part of the whole. Over several groups
// (rows and columns of a mesh) a value is each process's own in some of them; only values that are own in the same groups may be
// joined. What collectives add is added in a fixed tree over the ranks, on a GPU as on the CPU.
#pragma once

#include "engine/core/graph.h"
#include "engine/processes/group.h"

namespace nestgrad {

// An input that is each process's own. The same numbers.
Tensor own(Operand x, const ProcessGroup& processes);
// x, which is the same in all processes, as each one's own. The same numbers.
Tensor vary(Operand x, const ProcessGroup& processes);
// The sum over all processes of each one's own x; f32 or f64. The same bits everywhere.
Tensor all_sum(Operand x, const ProcessGroup& processes);
// x[r] of process s comes to be out[s] of process r. x: [processes, ..], each one's own. Its derivative is itself.
Tensor exchange(Operand x, const ProcessGroup& processes);
// What the process with the rank before this one has for its x; zeros at rank 0. x: each process's own. The derivative is
// rank_after(), and the other way round.
Tensor rank_before(Operand x, const ProcessGroup& processes);
// The same of the process with the next rank; zeros at the last.
Tensor rank_after(Operand x, const ProcessGroup& processes);

// Made of these:
// Cuts each one's own x along `split` into as many parts as there are processes, sends each its part, and joins what came along
// `join`, by rank. With time cut among processes and heads whole, all_to_all(x, heads, time) cuts heads and makes time whole.
Tensor all_to_all(Operand x, int split, int join, const ProcessGroup& processes);
// All processes' own x one after another along an axis, by rank. Each has it for its own.
Tensor all_gather(Operand x, int axis, const ProcessGroup& processes);
// This process's part of x, which is the same in all, along an axis.
Tensor own_part(Operand x, int axis, const ProcessGroup& processes);

}  // namespace nestgrad
