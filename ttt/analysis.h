// Analysis: what can be proved about a learner from its trace, and the form that follows from it. Nothing is
// decided by name: every "no" is a node of the user's own text.
#pragma once

#include "ttt/forms/form.h"

namespace nestgrad::ttt {

// Each string is the reason why something is not so; empty: it is so.
struct Analysis {
  std::string members;      // sequences and heads do not meet (what nothing but the primal form can run)
  std::string factors;      // every use of a fast weight factorises: rows x W
  std::string independent;  // tokens do not meet
  std::string degree_zero;  // no factor of a gradient depends on a learning weight
  std::string
      affine_use;  // one use, whose gradient is one number a token times the weight's output, plus a constant
  std::string
      linear_step;  // the optimiser's step is linear, with one coefficient a token (or one per input feature)
  std::string split_step;         // the step is affine in the weight, whatever it does to the gradient
  std::vector<std::string> uses;  // per weight: where it is used, in words
};

// Only the shapes of state and block matter.
Analysis analyse(const Learner& learner, const Policy& policy, const State& state, const Block& block);

// Why a learner run by this policy cannot answer token by token, in words; empty if it can. Either the policy
// reads whole chunks after writing them, or predict() lets the tokens of a chunk meet. (The loss may: a chunk
// is learnt from when it is complete.) start [batch, heads, ..]; q [batch, heads, any number of tokens, dim].
std::string why_not_causal(const Learner& learner, const Policy& policy, const Weights& start, Spec q);

// A form, and why not the others that do more at once.
struct FormPlan {
  FormChoice form = FormChoice::primal;
  struct Refusal {
    FormChoice form;
    std::string why;
  };
  std::vector<Refusal> refused;    // impossible
  std::vector<FormChoice> slower;  // possible, and slower at this shape; they run when asked for
};

// The form asked for, or the fastest valid one. FormError, with the reason, if the one asked for is
// impossible. members: sequences times heads; tokens: length of the sequence.
//
// With a step per token, forms that take more tokens at once do less work. With a step per chunk, those that
// take more chunks at once do the same work on weights that have left the cache. On a CPU (measured:
// docs/performance.md) parallel pays for chunks of a few tokens, which small products do badly one by one,
// and chunk-parallel where there is one member and so nothing else to share among threads.
FormPlan choose_form(const Analysis& analysis, const Policy& policy, const InnerOptimizer& optimizer,
                     bool has_position, std::int64_t members, std::int64_t tokens, FormChoice wanted);

}  // namespace nestgrad::ttt
