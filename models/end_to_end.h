// End-to-end test-time training (Tandon et al. 2025, 'End-to-End Test-Time Training for Long Context'), as in the
// official program (github.com/test-time-training/e2e, commit a4fc478): a transformer with sliding-window attention
// that goes on training while it reads. The inner loss is the model's own, next-token cross-entropy; what learns are
// extra MLPs ("prime") in its last blocks, a copy for each sequence; the outer loss is the same cross-entropy of
// every chunk under the weights that the chunks before it have left, differentiated through all inner steps:
//
//   L_i(W) = 1/chunk sum over t in chunk i of loss_t(W),   W_{i+1} = W_i - rate clip(dL_i/dW(W_i))
//   outer loss = 1/time sum over chunks i, t in i of loss_t(W_i)
//
// Targets that are the token which begins a text are left out: L_i is then the mean over the others of the chunk (0 where
// there are none, which teaches nothing), the outer loss that over the others of the text. (The official program's outer
// loss is the mean of the chunks' L_i instead: the same where no target is left out, or as many of each chunk.)
//
// A block is h <- h + norm(f(norm(h))) for f the attention, the prime MLP if it has one, and the MLP, with RMS norms
// before and behind; queries and keys are RMS-normed per head, then rotated.
//
// Each block that learns keeps the keys (not yet rotated) and values of the last window - 1 tokens as the weights of
// their own chunk made them: nothing is computed anew with later weights. Inner and outer gradients go through them.
// So what a chunk is given, besides weights, is this cache, and the learner is a class of this file rather than a
// ttt::Learner, whose loss sees the weights alone; its gradient is derived all the same.
#pragma once

#include "models/config.h"
#include "ttt/inner_loop.h"
#include "ttt/params.h"

namespace nestgrad {

struct EndToEndConfig {
  std::int64_t vocab_size = 256;
  std::int64_t hidden_size = 128;
  std::int64_t intermediate_size = 352;  // of every MLP
  std::int64_t num_hidden_layers = 4;
  std::int64_t num_attention_heads = 2;
  std::int64_t suffix_len = 0;  // last blocks, which have a prime MLP and learn; 0: a quarter, at least one
  std::int64_t window = 64;     // tokens that a token reads, itself included (sliding_window_size)
  std::int64_t chunk = 64;      // tokens of an inner step (mini_batch_size)
  double rate = 0.1;            // of the inner steps
  bool learned_rate = false;    // ours: the rate is an outer parameter that starts there
  // The rate's ramp over training steps (ilr_init, ilr_warmup_steps): in step n, the first being 0, it is
  // rate_init + (rate - rate_init) min(1, (n + 1) / rate_warmup_steps). 0 steps: there is none.
  double rate_init = 0;
  std::int64_t rate_warmup_steps = 0;
  double clip = 1.0;  // largest norm of an inner gradient, over a sequence's prime MLPs; 0 or less: any norm
  // full: as published; first_order: the weights at which an inner gradient is taken count as constants.
  ttt::Policy::Meta meta = ttt::Policy::Meta::full;
  // The token that begins a text: where it is the target, the loss is left out of every mean (EndToEndReading::counts).
  // -1: there is none.
  std::int64_t bos_token = -1;
  int checkpoint_every = 0;  // chunks, as in ScanOptions
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;

  std::int64_t learning_blocks() const;  // suffix_len, or what 0 stands for
  void check() const;                    // ConfigError, saying which field does not make sense and why
};

// What a language model's configuration of the kind kEndToEnd means: chunks of mini_batch_size tokens, a window of
// attention_window (not positive: 64), and an inner rate that is learned.
EndToEndConfig end_to_end_config(const LanguageModelConfig& config, int checkpoint_every = 0);

// What a model made of a text.
struct EndToEndReading {
  Tensor loss;    // of each next token under the weights learnt so far, in nats, [batch, time]
  Tensor of_all;  // the same, where the loss is 0 because the token does not count as well
  Tensor counts;  // 0 where that token is bos_token, else 1, [batch, time]; undefined: there is no such token
  Tensor
      clipped_norm;  // of the inner gradient of each whole chunk, [batch, chunks]; undefined: no chunk is whole
  ttt::Weights last;    // [batch, in, out] each, after these chunks

  Tensor mean_loss() const;  // over all tokens that count, []
};

// A chunk of a text and its inner step, laid open to be looked at.
struct EndToEndStep {
  Tensor loss;                // of each next token under the weights that it finds, [batch, chunk]
  Tensor loss_after;          // under those that its step leaves
  Tensor norm, clipped_norm;  // of its gradient, [batch]
  // The weights that it finds, each a node of its own: where the loss above is taken, with the keys and values that
  // later chunks read, and where the inner gradient is. What the outer loss gains by moving the first is a chunk's part
  // of the first-order gradient, by moving the second -rate H lambda, that of its step.
  ttt::Weights read, learnt;
};

class EndToEndModel {
 public:
  // Parameters have the official leaf names and layout: stacked over all blocks under
  // language_model.model.h.blocks, over the last suffix_len under language_model.model.h.prime_storage; matrices are
  // [in, out]. Besides, with learned_rate, inner_log_rate [].
  // step: how many training steps have been done, [], where the rate has a ramp; undefined: the ramp is over, as it is
  // for whoever reads with a model that has been trained.
  EndToEndModel(const EndToEndConfig& config, const Params& params, Tensor step = {});
  ~EndToEndModel();

  // tokens i32 [batch, time + 1]. A partial last chunk is read and teaches nothing.
  EndToEndReading read(Tensor tokens) const;
  Tensor loss(Tensor tokens) const { return read(tokens).loss; }
  // The same reading chunk by chunk, without a loop. ShapeError unless the chunks are whole.
  std::vector<EndToEndStep> steps(Tensor tokens) const;
  // The same loss with these weights throughout: the ordinary transformer.
  Tensor loss_at(const ttt::Weights& w, Tensor tokens) const;
  // Token by token, what came before being states of the stream. One token of each sequence, i32 [batch, 1], under
  // the weights learnt so far -> logits [batch, 1, vocab]. Of a stream that is learning it makes the inner step of the
  // chunk that has been read instead, and gives nothing: the token is then the first of the chunk after it, which is
  // the last label of this one.
  Tensor step(Tensor token, ttt::Stream& stream) const;
  // Prime MLPs before the first token, [batch, in, out] each: w1, w2, w3 of each block that learns.
  ttt::Weights start(std::int64_t batch) const;

 private:
  void learn(Tensor next, ttt::Stream& stream) const;
  class Learner;
  struct Memory;
  struct Chunk;
  std::unique_ptr<Learner> learner_;
};

}  // namespace nestgrad
