// DerivedLearner: what follows from a learner's text before any number is known: its traces, how its fast
// weights are used, and which properties hold. Made once for a run; forms, `explain`, decoding and effective
// attention take it. Nothing is decided by name: every "no" is a node of the user's own text.
//
//   const DerivedLearner derived(learner, policy, start, views);
//   derived.why_not(Property::linear_step);   // "[update] the step is not linear ..: at %8 = square .."
#pragma once

#include <array>
#include <deque>

#include "ttt/state.h"
#include "ttt/trace.h"

namespace nestgrad::ttt {

// What a form may require.
enum class Property : std::uint8_t {
  // of the learner
  separate_members,  // sequences and heads do not meet (nothing but the primal form runs without it)
  separate_tokens,   // tokens do not meet
  factored_uses,     // every use of a fast weight factorises: rows x W
  constant_factors,  // no factor of a gradient depends on a learning weight
  affine_use,   // one use, whose gradient is one number a token times the weight's output, plus a constant
  linear_step,  // the optimiser's step is linear, with one coefficient a token (or one per input feature)
  affine_step,  // per_chunk: the step is affine in the weight, whatever it does to the gradient
  // of the policy and the sequence
  one_step,        // each chunk makes one
  several_chunks,  // the sequence is longer than a chunk
  online,          // chunks of one token
  no_position,     // there are no position rates
  uncut_meta,      // the meta-gradient is not cut between chunks
  full_meta,       // .. and goes through every inner gradient
  one_document,    // no state begins anew inside of a block (Views::starts)
  count
};

class DerivedLearner {
 public:
  // Only the shapes of start and views matter. Learner and policy must outlive it; ConfigError for a policy
  // that makes no sense, FormError for a loss that is not per token, for a text that is another on other rows, and, where tokens
  // are separate, for a loss that a weight does not reach (else the primal form says so when it runs).
  DerivedLearner(const Learner& learner, const Policy& policy, const State& start, const Views& views);

  const Learner& learner() const { return learner_; }
  const Policy& policy() const { return policy_; }
  const InnerOptimizer& optimizer() const { return optimizer_; }
  bool per_chunk() const { return policy_.update == Policy::Update::per_chunk; }
  std::int64_t members() const { return members_; }  // sequences times heads
  std::int64_t time() const { return time_; }        // tokens
  std::int64_t chunk() const { return policy_.chunk_of(time_); }

  // What the learner's text gives for these weights (rows spread over tokens) and rows. A derivative that it takes itself is by
  // what it is given, not by what else was made of the same tensors.
  Tensor answers(const Weights& spread, Tensor x) const;
  Tensor losses(const Weights& spread, Tensor k, Tensor v) const;

  // Gates that the learner makes itself (Learner::gates), as rows [.., tokens, 1]. ConfigError for others than it says
  // that it makes, or of another shape.
  const std::vector<std::string>& own_gates() const { return own_gates_; }
  Gates made_gates(const Weights& spread, Tensor k, Tensor v, Tensor place) const;

  // Why a property fails, with the node that is to blame; empty if it holds.
  const std::string& why_not(Property p) const { return why_not_[static_cast<std::size_t>(p)]; }
  bool has(Property p) const { return why_not(p).empty(); }
  std::string why_not(const std::vector<Property>& all) const;  // of the first that fails
  // FormError where members meet and the text, on other rows, is another one. (Where they do not, the constructor has thrown.)
  void require_one_text() const;
  // Why chunks of this sequence cannot be worked on at once though inside of each no tokens meet: those of
  // several do, as in a learner that looks further back than a chunk is long. Empty if they can.
  std::string why_chunks_meet() const;
  // Do the coefficients of its steps differ from one input feature to the other?
  bool has_feature_gates() const { return feature_gates_; }
  // Per weight: where the loss uses it, in words.
  const std::vector<std::string>& uses() const { return uses_; }

  // The traces on rows of these shapes, made when they are first asked for.
  const LearnerTrace& loss(const Weights& weights, const Spec& k, const Spec& v) const;
  const LearnerTrace& predict(const Weights& weights, const Spec& q) const;

 private:
  void prove_uses(const Weights& weights, const Spec& q, const Tensor& k, const Tensor& v);
  std::string why_other_text(const Weights& weights, const LearnerTrace& loss, const LearnerTrace& predict,
                             const Spec& q, const Spec& k,
                             const Spec& v) const;  // on other rows; empty: it is the same
  void prove_one_text_of_gates(const Weights& weights, const Tensor& k, const Tensor& v) const;
  void prove_step(const State& state, const Gates& gates, const Tensor& k, const Tensor& v);
  void prove_gates(const State& state, Gates& gates, const Tensor& k, const Tensor& v);
  void prove_policy(const Views& views);
  void refuse(Property p, std::string why) { why_not_[static_cast<std::size_t>(p)] = std::move(why); }

  const Learner& learner_;
  const Policy& policy_;
  const InnerOptimizer optimizer_;
  const std::vector<std::string> own_gates_;
  const Weights start_;
  const Spec q_, k_, v_;  // of the whole sequence
  std::int64_t members_, time_;
  Graph& home_;  // the graph that it was made in, of which all traces are children
  std::array<std::string, static_cast<std::size_t>(Property::count)> why_not_;
  std::vector<std::string> uses_;
  std::string other_text_;  // why the text is another one on other rows; empty: it is not, or tokens meet
  bool feature_gates_ = false;
  mutable std::deque<LearnerTrace> losses_, predictions_;
};

// Why a learner run by this policy cannot answer token by token, in words; empty if it can. Either the policy
// reads whole chunks after writing them, or predict() lets the tokens of a chunk meet. (The loss may: a chunk
// is learnt from when it is complete.) start [batch, heads, ..]; q [batch, heads, any number of tokens, dim].
std::string why_not_causal(const Learner& learner, const Policy& policy, const Weights& start, Spec q);

}  // namespace nestgrad::ttt
