// The inner loop: a learner trained along a sequence, one gradient step per mini-batch of tokens.
#pragma once

#include "ttt/form.h"
#include "ttt/stream.h"

namespace nestgrad::ttt {

// Three views of a token (Sun et al. 2024, section 2.3): what is learnt from (k), what is learnt (v), what is
// asked (q).
struct Views {
  Tensor q, k, v;  // [batch, heads, time, dim]
};

// eta[i, j] = position[i] * token[j]: i is the reading token's place in its mini-batch, j the token whose
// gradient is used.
struct Rates {
  Tensor token;     // [batch, heads, time, 1]
  Tensor position;  // [mini_batch]
};

struct InnerLoopOptions {
  std::int64_t mini_batch = 16;  // 1: online; the length of the sequence: batch gradient descent
  FormChoice form = FormChoice::automatic;
  int checkpoint_every = 0;  // as in ScanOptions
  bool track_loss = false;
};

struct InnerLoopResult {
  Tensor output;  // f(q_t; W_t), [batch, heads, time, dim]
  Weights last;   // after the whole sequence, [batch, heads, ..]
  // With track_loss, [batch, heads, time]: loss of each token at the first weights of the sequence, before
  // and after its own gradient was used.
  Tensor loss_initial, loss_before, loss_after;
};

// Each token reads after its own gradient was written. A last mini-batch may be partial. `start`: [batch,
// heads, ..].
InnerLoopResult train_along(const Learner& learner, const Weights& start, const Views& views,
                            const Rates& rates, const InnerLoopOptions& options);

// The learner's initial weights, [heads, ..] -> [batch, heads, ..].
Weights for_batch(const Weights& w, std::int64_t batch);

// One token of the same loop: weights and the gradients of the mini-batch so far are states of the stream.
// views and rates.token have time 1; `slot` [1] is the token's place in its mini-batch. -> [batch, heads, 1,
// dim].
Tensor train_step(const Learner& learner, const Weights& start, const Views& views, const Rates& rates,
                  Tensor slot, const InnerLoopOptions& options, Stream& stream, const std::string& name);

}  // namespace nestgrad::ttt
