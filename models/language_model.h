// The published TTT language model: embedding, blocks of (optional convolution, sequence layer, SwiGLU),
// final norm, tied output. The sequence layer is a learner trained along the sequence, or softmax attention
// as the baseline.
#pragma once

#include <functional>
#include <optional>

#include "models/config.h"
#include "ttt/layer.h"

namespace nestgrad {

// A language model as a function, of whatever make: tokens i32 [batch, time] -> logits [batch, time, vocab]. It
// asks params for what it needs. A Trainer calls it on whole sequences, a Decoder with one token at a time, what
// came before being carried by the stream (ttt/stream.h). check_decoding (models/decoder.h) says whether a
// function of one's own answers the same both ways.
using LogitsFn = std::function<Tensor(const Params& params, Tensor tokens, ttt::Stream& stream)>;

// What a model answers. ConfigError if it is an empty function, ShapeError unless it makes [batch, time, vocab].
Tensor logits_of(const LogitsFn& model, const Params& params, Tensor tokens, ttt::Stream& stream);

// What a LanguageModel is, beyond its configuration.
struct LanguageModelOptions {
  ttt::FormChoice form = ttt::FormChoice::automatic;
  int checkpoint_every = 0;                // of the layers' scans, as in ScanOptions
  std::int64_t attention_capacity = 0;     // length of the key-value cache while stepping (attention only)
  std::optional<ttt::System> system = {};  // the learner of every layer, instead of the one of ttt_layer_type
  // What every layer has to learn, instead of projections of its input: made of the layer's own parameters, the
  // model's width and the layer's name, under which a Task keeps what it carries from token to token.
  std::function<std::unique_ptr<ttt::Task>(const Params&, std::int64_t width, const std::string& name)> task =
      {};
};

// LanguageModel(config, .., options) as a function. ConfigError for a configuration that makes no sense.
//
//   Trainer trainer(training, corpus, language_model(config, {.system = my_system()}));
LogitsFn language_model(const LanguageModelConfig& config, const LanguageModelOptions& options = {});

class LanguageModel {
 public:
  // Parameters are asked for under the names of the published state dict.
  LanguageModel(const LanguageModelConfig& config, const Params& params,
                const LanguageModelOptions& options = {});
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

// Why sequences cannot be cut into so many slices of so many tokens (ttt/stream.h), in words; empty if they can.
std::string why_not_cut(const LanguageModelConfig& config, std::int64_t tokens, std::int64_t slices);

// Next-token loss of tokens i32 [batch, time + 1]: per token [batch, time], in nats.
Tensor next_token_loss(const LogitsFn& model, const Params& params, Tensor tokens, ttt::Stream& stream);

// The same of the model that a configuration names: a LanguageModel, or TTT-E2E, whose inner rate may have a ramp over
// training steps: step, [], is how many have been done; undefined: the ramp is over.
Tensor next_token_loss(const LanguageModelConfig& config, const Params& params, Tensor tokens,
                       ttt::Stream& stream, int checkpoint_every = 0, Tensor step = {});

}  // namespace nestgrad
