// How a learner goes along sequences that are cut in time, of which each rank of a group has a slice (Stream::cut). All ways
// give the same numbers but for rounding; they differ in what the ranks send each other, and in what they have to prove:
//
//   heads      each rank learns all tokens of some of the heads, for which parts of q, k, v, gates and answers change hands. Any learner of
//              which the one made for some of the heads is their part of the one for all: heads do not meet in it, none is told from
//              another by its place, nothing is made of how many there are (seen on its text, ttt/slice_proofs.h).
//   exchange   where the last state of a slice is affine in its first one, W -> M W + S: each rank finds M and S of its slice, all have
//              those of all, and each begins with what those before it add up to (flash-linear-attention does so for a few layers, by
//              hand). For each head S is a matrix for each state and M one for each pair of states: two in all for a weight alone,
//              six for a weight and its momentum. M is the derivative of the last state with respect to the first, which a
//              meta-gradient that is cut would not be; that it does not depend on any state, and moves the columns of a state one by
//              one and all alike, is seen on its trace.
//   pipeline   each rank takes the sequences of the batch one after the other, and begins its slice of one with what the rank before has
//              left of it. Any learner with chunks, and the work of one rank while others wait for the first sequence. A truncated
//              meta-gradient is cut where that of the whole sequence is:
//
//                round     0    1    2    3        batch + ranks - 1 rounds, in each of which a rank works on one sequence
//                rank 0    a0   b0   c0   -        (at the ends on one whose result no one reads)
//                rank 1    -    a1   b1   c1
//
//              It is a scan over the rounds, whose body passes states on; its derivative passes their cotangents back.
//
// Exchange and pipeline hand over one state at the borders of slices. Slices are whole chunks then, unless each token makes a step of
// its own with a gradient that does not depend on what was learnt before, as in linear attention: chunks are nothing there.
#pragma once

#include "engine/processes/group.h"
#include "ttt/system.h"

namespace nestgrad::ttt {

enum class SliceForm : std::uint8_t { automatic, heads, exchange, pipeline };
std::string_view name(SliceForm form);

// The way that is taken, and why not the others.
struct SlicePlan {
  SliceForm form = SliceForm::heads;
  struct Refusal {
    SliceForm form;
    std::string why;
  };
  std::vector<Refusal> refused;
  std::string str() const;  // several lines
};

// Why slices of so many tokens are not whole chunks, in words; empty if they are.
std::string why_not_whole_chunks(const Policy& policy, std::int64_t tokens);

// views: of a slice, [batch, heads, time here, ..], start [batch, heads, ..], of so many slices. heads if they can be shared out; else what
// takes less time for the batch. ConfigError that says why if the one asked for is impossible, or all are; in the name of `who`.
// learner: the system's, of these sizes.
SlicePlan choose_slices(const System& system, const SystemSizes& sizes, const Learner& learner,
                        const Weights& start, const Views& views, const InnerLoopOptions& options,
                        std::int64_t slices, const std::string& who, SliceForm wanted = SliceForm::automatic);

// The answers to this rank's slices, views [batch, heads, time here, ..], as train_along(learner, start, ..) gives them of whole sequences,
// by exchange or pipeline. start: [batch, heads, ..].
Tensor train_along_slices(const Learner& learner, const Weights& start, const Views& views,
                          const InnerLoopOptions& options, const ProcessGroup& ranks, SliceForm form);

}  // namespace nestgrad::ttt
