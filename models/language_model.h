// The published TTT language model: embedding, blocks of (optional convolution, sequence layer, SwiGLU),
// final norm, tied output. The sequence layer is a learner trained along the sequence, or softmax attention
// as the baseline.
#pragma once

#include "models/config.h"
#include "ttt/layer.h"

namespace nestgrad {

class LanguageModel {
 public:
  // Parameters are asked for under the names of the published state dict.
  // attention_capacity: length of the key-value cache while stepping (attention only).
  LanguageModel(const LanguageModelConfig& config, const Params& params,
                ttt::FormChoice form = ttt::FormChoice::automatic, int checkpoint_every = 0,
                std::int64_t attention_capacity = 0);
  ~LanguageModel();

  // tokens i32 [batch, time] -> logits [batch, time, vocab].
  Tensor logits(Tensor tokens, ttt::Stream& stream) const;

 private:
  struct Block;
  Tensor run(const Block& block, Tensor h, ttt::Stream& stream) const;

  LanguageModelConfig config_;
  Params params_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

// Next-token loss of tokens i32 [batch, time + 1]: per token [batch, time], in nats.
Tensor next_token_loss(const LanguageModel& model, Tensor tokens, ttt::Stream& stream);

// The same of the model that a configuration names: a LanguageModel, or TTT-E2E.
Tensor next_token_loss(const LanguageModelConfig& config, const Params& params, Tensor tokens,
                       ttt::Stream& stream, int checkpoint_every = 0);

}  // namespace nestgrad
