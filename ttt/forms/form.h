// Form: a way to run a learner through a block of a sequence. All forms of a learner give the same numbers;
// they differ in what they materialise and in what they have to prove (ttt/forms/table.h lists them). Shapes:
// q, k, v [batch, heads, tokens, dim]; weights [batch, heads, in, out]; gates [batch, heads, tokens, 1 or in].
#pragma once

#include "ttt/state.h"

namespace nestgrad::ttt {

class DerivedLearner;
struct Laws;

struct BlockResult {
  Tensor output;  // [batch, heads, tokens, out]
  State next;
  State unplaced;  // primal: `next` as it would be without position rates
  // If asked for, [batch, heads, tokens, 1]: loss at `first`, before and after the token's own step.
  std::vector<Tensor> losses;
};

// automatic: the fastest valid one for the shape.
enum class FormChoice : std::uint8_t { automatic, primal, dual, parallel, wy, chunk_parallel };
std::string_view name(FormChoice form);
FormChoice form_named(std::string_view name);  // ConfigError for an unknown one; lists them

// The error of a weight that no gradient of the inner loss comes to. stage: primal, dual.
FormError not_reached(std::string_view stage, const std::string& weight);

class Form {
 public:
  // first: weights for losses[0]; empty: losses are not wanted. The learner must outlive the form.
  Form(const DerivedLearner& learner, Weights first);
  virtual ~Form() = default;
  // What the form works out from the gates alone, for many blocks at once: tensors with the leading axes of
  // the gates. gates: rows [lead.., tokens, ..]; position: [tokens] or undefined.
  virtual Laws prepare(const State& state, const Gates& gates, const Shape& lead, std::int64_t tokens,
                       Tensor position) const;
  virtual BlockResult run(const State& state, const Block& block, const Laws& laws) const = 0;
  // The block with the gates that the learner makes itself. place, as Stream::counter has its shape: of its only token
  // in the chunk; undefined: the block begins with its chunk.
  Block with_own_gates(const State& state, Block block, Tensor place = {}) const;
  // The weights where the block's gradients are taken, before a policy makes constants of them.
  std::vector<Tensor> points(const State& state, const Block& block) const;
  // The same with policy and offset heeded.
  Weights gradient_point(const State& state, const Block& block) const;
  Tensor rate_of(const Gates& gates, const FastWeight& weight) const {
    return ttt::rate_of(policy_, gates, weight);
  }

 protected:
  bool tracking() const { return first_.size() > 0; }
  const DerivedLearner& derived_;
  const Learner& learner_;
  const Policy& policy_;
  const InnerOptimizer& optimizer_;
  const Weights first_;
};

}  // namespace nestgrad::ttt
