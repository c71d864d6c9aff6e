// TTT-Linear (Sun et al. 2024, section 2.7): f(x) = x + LN(x W + b), loss 1/2 |f(k) - v|^2.
#pragma once

#include "ttt/learner.h"
#include "ttt/params.h"

namespace nestgrad::ttt {

class Linear : public Learner {
 public:
  // Parameters: W1 [heads, dim, dim], b1 [heads, 1, dim], ttt_norm_weight and ttt_norm_bias [heads, dim].
  Linear(const Params& params, std::int64_t heads, std::int64_t dim);
  Weights init() const override;
  Tensor predict(const Weights& w, Tensor x) const override;
  Description describe() const override { return {"x + LN(x W1 + b1)", "1/2 |f(k) - v|^2"}; }

 private:
  Tensor W1_, b1_, gain_, shift_;
};

}  // namespace nestgrad::ttt
