// Learners along sequences that are cut in time, where the heads cannot be shared out: each rank takes the sequences of the batch one
// after the other, and begins its slice of one with what the rank before has left of it. So the first rank is at the third
// sequence while the second rank is at the second:
//
//   round     0    1    2    3        batch + ranks - 1 rounds, in each of which a rank works on one sequence
//   rank 0    a0   b0   c0   -        (at the ends on one whose result no one reads)
//   rank 1    -    a1   b1   c1
//
// It is a scan over the rounds, whose body passes states on with rank_before(); its derivative passes their cotangents back.
#pragma once

#include "engine/processes/group.h"
#include "ttt/inner_loop.h"

namespace nestgrad::ttt {

// Why it cannot be done so, in words; empty if it can. time: of a slice.
std::string why_not_passed_on(const Policy& policy, const Views& views, std::int64_t time);

// The answers to this rank's slices, views [batch, heads, time here, ..], as train_along(learner, start, ..) gives them of the whole
// sequences. start: [1, heads, ..]. ConfigError if it cannot be done, in the name of `who`.
Tensor train_along_slices(const Learner& learner, const Weights& start, const Views& views,
                          const InnerLoopOptions& options, const ProcessGroup& ranks, const std::string& who);

}  // namespace nestgrad::ttt
