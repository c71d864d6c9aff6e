// Effective linear attention ("Test-time training with KV binding is secretly linear attention", theorems 5.1
// to 5.3): a learner whose last layer is linear and bias-free, f(x; W, Theta) = phi(x; Theta) W, answers
//
//   o_t = (decay_t * q_t) base + sum_s matrix[t, s] v_s,     matrix[t, s] = Z[t, s] <q_t, k_s>
//
// (where gates are per feature, decay_t and Z[t, s] have a number for each, within the product)
// with effective queries q_t = phi(q_t; Theta_t), keys k_s = phi(k_s; Theta at s's gradient) and values v_s =
// the rate of s (negative with ascent) times the derivative of its inner loss by its prediction. Z is what the optimiser's steps
// of W add up to: -1 without momentum and forgetting, below the diagonal, and on it where answers are read after the write; sums
// of products of the momentum factors in theorem 5.3; 0 where s is in another document than t. Theta may learn in any way; the
// step of W must be linear.
#pragma once

#include "ttt/inner_loop.h"

namespace nestgrad::ttt {

struct EffectiveAttention {
  Tensor queries, keys;  // [batch, heads, time, hidden]
  Tensor values;         // [batch, heads, time, out]
  Tensor base;           // W at the start, [batch, heads, hidden, out]
  // [batch, heads, time, 1], or hidden where gates are per feature: what is left of W at the start, and of an anchor there,
  // when t reads.
  Tensor decay;
  Tensor matrix;  // [batch, heads, time, time]
  Tensor output() const;
};

// FormError, naming the node, for a learner whose last layer is not a linear, bias-free use of one fast
// weight, or whose step of that weight is not linear; and for a truncated meta-gradient, which a matrix does not have (the
// numbers are those of meta = full).
EffectiveAttention effective_attention(const Learner& learner, const Weights& start, const Views& views,
                                       const Policy& policy);

}  // namespace nestgrad::ttt
