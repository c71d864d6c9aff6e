// End-to-end test-time training (Tandon et al. 2025, 'End-to-End Test-Time Training for Long Context'): a
// transformer with sliding-window attention that goes on training while it reads. The inner loss is the
// model's own, next-token cross-entropy; what learns are extra MLPs in its last blocks; the outer loss is the
// same cross-entropy of every chunk under the weights that the chunks before it have left, differentiated
// through all inner steps:
//
//   W_i = W_{i-1} - rate clip(1/chunk sum over t in chunk i of dloss_t(W_{i-1})/dW)
//   outer loss = 1/time sum over chunks i, t in i of loss_t(W_{i-1})
//
// loss_t(W) is what the whole transformer says of token t with the weights W: the keys and values of the
// tokens in its window, chunks before its own included, are computed with W too. (A key-value cache would
// hold them as the weights of their own time made them.) For that each chunk sees, in front of its own rows,
// as many rows of the tokens before it as its windows reach back through the blocks that learn: (window - 1)
// fast_layers. The blocks below them, which do not learn, are run once, over the whole sequence.
#pragma once

#include "ttt/inner_loop.h"
#include "ttt/params.h"

namespace nestgrad {

struct EndToEndConfig {
  std::int64_t vocab_size = 256;
  std::int64_t hidden_size = 128;
  std::int64_t intermediate_size = 352;  // of every MLP
  std::int64_t num_hidden_layers = 4;
  std::int64_t num_attention_heads = 2;
  std::int64_t fast_layers = 0;  // last blocks with an extra MLP that learns; 0: a quarter, at least one
  std::int64_t window = 64;      // tokens that a token reads, itself included
  std::int64_t chunk = 64;       // tokens of an inner step
  double rate = 0.1;             // of the inner steps
  bool learned_rate = true;      // the rate is an outer parameter that starts there
  double clip = 1.0;             // largest norm of an inner gradient, over all extra MLPs of a sequence
  ttt::Policy::Meta meta = ttt::Policy::Meta::full;
  int checkpoint_every = 0;  // chunks, as in ScanOptions
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;

  void check() const;  // ConfigError, saying which field does not make sense and why
};

class EndToEndModel {
 public:
  // Parameters have the names of the published TTT language model (models/language_model.h); besides, in the
  // last blocks, fast_norm.weight and fast_mlp.W0, W1, W2 [1, in, out], and inner_log_rate [1, 1].
  EndToEndModel(const EndToEndConfig& config, const Params& params);
  ~EndToEndModel();

  // tokens i32 [batch, time + 1] -> loss of each next token under the weights learnt so far, in nats,
  // [batch, time].
  Tensor loss(Tensor tokens) const;
  // The same with these weights throughout, [batch, 1, in, out]: the ordinary transformer.
  Tensor loss_at(const ttt::Weights& w, Tensor tokens) const;
  // Extra MLPs before the first token, [1, in, out] each.
  ttt::Weights start() const;

 private:
  class Learner;
  std::unique_ptr<Learner> learner_;
};

}  // namespace nestgrad
