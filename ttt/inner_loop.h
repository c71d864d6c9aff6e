// The inner loop: a learner trained along a sequence.
#pragma once

#include "ttt/forms/table.h"
#include "ttt/stream.h"

namespace nestgrad::ttt {

struct InnerLoopOptions {
  Policy policy = {};
  FormChoice form = FormChoice::automatic;
  std::int64_t block =
      64;  // tokens (parallel, wy) that are worked on at once, 1 or more; never changes the meaning
  int checkpoint_every = 0;  // as in ScanOptions
  bool track_loss = false;
  // Per weight that learns [chunks, batch, heads, in, out], or empty: added to the weights
  // where each chunk's gradient is taken. Zeros; the outer derivative with
  // respect to them is what each inner step's gradient adds to the meta-gradient.
  std::vector<Tensor> gradient_offset = {};
  // Shaped likewise: added to the weights that each chunk finds. Zeros; the outer derivative with respect to
  // them is lambda, what the outer loss wants of the weights at that time.
  std::vector<Tensor> state_offset = {};
  // Give InnerLoopResult::points. As offsets do, that takes a form that learns chunk after chunk: FormChoice::automatic is then
  // dual or primal.
  bool keep_points = false;
  // [1], or undefined: none. Chunks of the same sequence before its part that is given: where a truncated meta-gradient is cut
  // goes by a chunk's number in the whole, so that parts one after the other have the gradient of the whole.
  Tensor chunks_before = {};
};

// ConfigError for a number that makes no sense.
void check(const InnerLoopOptions& options);

// Such zeros, [chunks, ..] beside each weight, each a variable of its own.
std::vector<Tensor> zero_offsets(const Weights& weights, std::int64_t chunks);

struct InnerLoopResult {
  Tensor output;  // f(q_t; W_t), [batch, heads, time, dim]
  State state;    // after the whole sequence, [batch, heads, ..]
  const Weights& last() const { return state.weights; }
  // With track_loss, [batch, heads, time]: loss of each token at the first weights of the sequence, before
  // and after its own step (per_chunk: its chunk's).
  Tensor loss_initial, loss_before, loss_after;
  // With keep_points, per weight [chunks, batch, heads, in, out]: where each chunk's gradient is taken.
  std::vector<Tensor> points;
  FormPlan plan;
};

// A last chunk may be partial. `start`: [batch, heads, ..].
InnerLoopResult train_along(const Learner& learner, const Weights& start, const Views& views,
                            const InnerLoopOptions& options);
// The same from a state that an earlier sequence left: weights and slots.
InnerLoopResult train_along(const Learner& learner, const State& start, const Views& views,
                            const InnerLoopOptions& options);

// Several sequences one after the other: each starts from `start`, or (policy.carry) from where the one
// before ended.
std::vector<InnerLoopResult> train_along_each(const Learner& learner, const Weights& start,
                                              const std::vector<Views>& sequences,
                                              const InnerLoopOptions& options);

// The learner's initial weights, [heads, ..] -> [batch, heads, ..].
Weights for_batch(const Weights& w, std::int64_t batch);

// One token of the same loop, everything that came before being states of the stream. views have time 1
// (position whole); `slot` [1] is the token's place in its chunk. -> [batch, heads, 1, dim]. ConfigError for
// a policy that is not causal, and for what belongs to a whole sequence: starts of documents, offsets, points, losses and
// chunks_before.
Tensor train_step(const Learner& learner, const Weights& start, const Views& views, Tensor slot,
                  const InnerLoopOptions& options, Stream& stream, const std::string& name);

}  // namespace nestgrad::ttt
