// What the ways along slices of a sequence (ttt/slices.h) take for granted of a learner, proved on its text, before any number is
// known: each says in words why it is not so; empty if it is.
#pragma once

#include "ttt/system.h"

namespace nestgrad::ttt {

// Exchange: what a slice adds to its last state for each D in its first is M D, one matrix M from the left for all columns of D,
// and is what is computed, not what a rule of custom_vjp says. It is the derivative in the direction D that is
// looked at; that the last state is affine in the first is another question.
std::string why_not_from_the_left(const Learner& learner, const State& start, const Views& views,
                                  const InnerLoopOptions& options);

// Heads: the learner that System::learner makes for heads / parts heads, with these heads' parts of the parameters, computes what
// that of all heads does for them. Not so of RetNet, whose head h forgets by 1 - 2^(-5 - h): the first head of each part
// would be head 0.
std::string why_heads_are_no_parts(const System& system, const SystemSizes& sizes, const Views& views,
                                   const InnerLoopOptions& options, std::int64_t parts);

}  // namespace nestgrad::ttt
