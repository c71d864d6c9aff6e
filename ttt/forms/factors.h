// Factors: the gradient of rows x W is an outer product, x' d. Found on the learner's trace: each use of a
// fast weight gets a name of its own, and one derivative with respect to these names gives every factor.
#pragma once

#include "ttt/derived_learner.h"
#include "ttt/forms/law.h"

namespace nestgrad::ttt {

// One use of one weight. Matrix: G_s = a_s' b_s. Row weight: a undefined, G_s = b_s.
struct Factor {
  std::size_t weight;
  Tensor a, b;  // [.., tokens, in], [.., tokens, out]
  bool transposed;
};
using Factors = std::vector<Factor>;

// The factors of every token's gradient at these weights. FormError if the trace does not allow it, or if a
// weight does not reach the loss.
Factors factors_at(const DerivedLearner& learner, const Weights& at, Tensor k, Tensor v);

// Re-emits a traced function with every token reading its own weights: rows x W_t = sum_j c_j (rows x S_j) +
// (z o rows a') b (o: elementwise). reads: one per weight.
// `seen` is shown the rows that each weight meets.
Tensor read(const LearnerTrace& trace, const State& state, const Factors& factors,
            const std::vector<Reads>& reads, std::span<const Tensor> rows,
            const std::function<void(const Use& use, Tensor x)>& seen = {});

// z o (x a'), [.., rows, tokens]; the features of a wide z are summed with the product.
Tensor scores(const Reads& reads, Tensor x, Tensor a);
// sum_j c_j (rows x S_j), or x S_j'.
Tensor base(const Reads& reads, const std::vector<Tensor>& states, Tensor x, bool transposed);

// The state after the block.
State end_state(const State& state, const Factors& factors, const std::vector<BlockLaw>& laws);

}  // namespace nestgrad::ttt
