// TTT-MLP (Sun et al. 2024, section 2.7): f(x) = x + LN(gelu(x W1 + b1) W2 + b2), hidden width 4 dim.
#pragma once

#include "ttt/learner.h"
#include "ttt/params.h"

namespace nestgrad::ttt {

class Mlp : public Learner {
 public:
  // Parameters: W1 [heads, dim, 4 dim], b1 [heads, 1, 4 dim], W2 [heads, 4 dim, dim], b2 [heads, 1, dim],
  // ttt_norm_weight and ttt_norm_bias [heads, dim].
  Mlp(const Params& params, std::int64_t heads, std::int64_t dim);
  Weights init() const override;
  Tensor predict(const Weights& w, Tensor x) const override;
  Description describe() const override { return {"x + LN(gelu(x W1 + b1) W2 + b2)", "1/2 |f(k) - v|^2"}; }

 private:
  Tensor W1_, b1_, W2_, b2_, gain_, shift_;
};

}  // namespace nestgrad::ttt
