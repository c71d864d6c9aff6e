// T^5: the learner makes one step on all tokens, with loss -dim^-1/2 <f(k), v>, averaged over the tokens;
// keys are normalised over the tokens, per feature. The layer is t5_attention (ttt/vision.h).
#pragma once

#include "ttt/compose.h"
#include "ttt/inner_loop.h"

namespace nestgrad::ttt {

enum class FastModel : std::uint8_t {
  gated,         // silu(x W) * x
  two_layers,    // silu(x W1) W2
  three_layers,  // silu(silu(x W1) W2) W3
  swiglu,        // (silu(x W0) * (x W2)) W1
};
Model t5_model(FastModel model, const Params& params, std::int64_t heads, std::int64_t dim,
               std::int64_t hidden);
InnerLoss t5_loss(std::int64_t dim);
// Over the tokens, per sequence, head and feature; without gain and shift.
Tensor instance_norm(Tensor x, double eps = 1);

}  // namespace nestgrad::ttt
