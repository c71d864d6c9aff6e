// The WY form of online learning. With one use of one matrix weight, whose derivative D is affine
// in the use's output U with one factor a token, D = alpha U + C, all gradients of a block solve one
// triangular system:
//
//   (I - diag(alpha) (z o X X') diag(rate)) D = alpha sum_j c_j (X S_j) + C,
//
// z, c: the law of the weights at which each gradient is taken. The delta rule (Yang et al. 2024), gated or
// with momentum, is the case of the squared loss on a linear model.
#pragma once

#include "ttt/forms/dual.h"

namespace nestgrad::ttt {

// D = alpha U + C at the one use: rows X [.., tokens, in],
// alpha [.., tokens, 1] or a scalar, C [.., tokens, out].
struct AffineUse {
  Tensor rows, alpha, offset;
  bool transposed;
};
// FormError naming the node if the trace is not of this kind.
AffineUse affine_use(const DerivedLearner& learner, const Weights& w, Tensor k, Tensor v);

class WyForm : public DualForm {
 public:
  using DualForm::DualForm;
  Laws prepare(const State& state, const Gates& gates, const Shape& lead, std::int64_t tokens,
               Tensor position) const override;

 protected:
  Factors factors(const State& state, const Block& block, const Laws& laws) const override;
};

}  // namespace nestgrad::ttt
