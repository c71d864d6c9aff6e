// Titans' long-term memory: its gates where a step belongs to several tokens.
#pragma once

#include "ttt/optimizer.h"

namespace nestgrad::ttt {

// S <- eta S - g, W <- keep W + S: by token with the gates "eta" and "keep"; where a step belongs to several tokens
// with titans_gates, of which "write" says which token of them moves the weight.
InnerOptimizer titans_optimizer(std::int64_t tokens_of_a_step = 1);

// The gates of steps that belong to `tokens` tokens each: a step's gradient is the sum over its tokens, and its last
// token makes it. rate [.., time, 1] by token; eta, keep [.., steps, 1] by step, steps = floor(time / tokens). Tokens
// behind the last whole step write nothing. ShapeError if there is another number of steps.
Gates titans_gates(Tensor rate, Tensor eta, Tensor keep, std::int64_t tokens);

}  // namespace nestgrad::ttt
