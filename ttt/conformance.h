// conformance: the stock battery of proofs, for anyone's learner (as a System), in f64. Each check compares the loop with another
// form of it, with differences, or with another cut or schedule of the same loop.
//
//   CHECK(ttt::conformance(my_system, {.dim = 4}).passed());
#pragma once

#include "ttt/claim.h"
#include "ttt/system.h"

namespace nestgrad::ttt {

struct ConformanceReport {
  std::vector<Claim> checks;  // each by its name below
  bool passed() const;
  std::string str() const;  // one line a check
};

// clang-format off
//   forms          all valid forms agree: values, gradients, gradients of |gradient|^2 (order 2); fails as well where
//                  these numbers are not finite in the primal form, as of a learner whose steps are too large
//   differences    the meta-gradient against central differences along a random direction
//   taylor         what the linear model of the outer loss leaves shrinks with the square of the step
//   contributions  first-order gradient + each inner step's own part = full gradient
//   online         with chunks of one token: token after token from the carried state = the whole sequence at once
//   resume         the sequence in two parts, cut at a chunk = in one: values and gradients
//   documents      packed sequences, restarting at a document's start = the documents one after the other
//   decode         token by token through streams = the whole sequence (causal policies)
//   independence   another sequence in the batch changes no bit of this one
//   alone          a head of a sequence by itself = beside other heads and sequences
//   causality      a later token changes no earlier output (causal policies)
//   checkpoints    kept at every 1st, 2nd and 3rd chunk: the same bits of values and gradients
//   threads        1, 2 and 5 threads: the same bits
//   zeros          keys and values of zeros give finite values and derivatives of order 1 and 2, where small
//                  ones do
// clang-format on
// ConfigError for a gate that nothing reads: a misspelt name would be a learner without it.
ConformanceReport conformance(const System& system, const ProgramSizes& sizes = {}, std::uint64_t seed = 1);

}  // namespace nestgrad::ttt
