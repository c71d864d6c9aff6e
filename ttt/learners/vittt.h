// ViT^3 (Han et al. 2025): a gated linear unit per head, (x W1) * silu(x W2), and a 3x3 depthwise convolution
// make one step each on all tokens of an image, with loss -9^-1/2 <f(k), v>, averaged over the tokens. The
// block that holds both is vittt_block (ttt/vision.h).
#pragma once

#include "ttt/optimizer.h"
#include "ttt/policy.h"

namespace nestgrad::ttt {

// Every gradient is divided by (its norm + 1), per column: per output of the unit, per kernel.
InnerOptimizer vittt_optimizer(double rate = 1);
Policy all_tokens_at_once();

}  // namespace nestgrad::ttt
