// Decoder: a language model read one token at a time. What each layer carries
// from token to token (fast weights, the gradients of the current mini-batch,
// convolution windows, keys and values) are arrays of this object.
#pragma once

#include <span>

#include "models/language_model.h"
#include "models/traced_model.h"

namespace nestgrad {

class Decoder {
 public:
  // `params` must fit the configuration (ConfigError).
  // capacity: most tokens that an attention model will read.
  Decoder(const LanguageModelConfig& config, StateDict params, DType dtype, std::int64_t batch,
          std::int64_t capacity = 0, ttt::FormChoice form = ttt::FormChoice::automatic);
  // Of any model that can be read token by token.
  Decoder(const LogitsFn& model, StateDict params, DType dtype, std::int64_t batch);

  // Reads one token of each sequence: i32 [batch] -> logits [batch, vocab] for the next one.
  Array step(const Array& tokens);
  // Back to before the first token.
  void reset();
  std::int64_t position() const { return position_; }

  // The carried state, to stop here and go on later: bit-identical to not having stopped.
  StateDict state() const;
  void restore(const StateDict& state, std::int64_t position);  // ConfigError if it does not fit

 private:
  void trace(const LogitsFn& model, DType dtype, std::int64_t batch);

  StateDict params_, initial_;
  TracedModel model_;
  std::shared_ptr<Plan> plan_;
  std::vector<std::string> state_names_;
  std::vector<std::size_t> state_inputs_;  // where the states stand among the plan's inputs
  std::vector<Array> inputs_, outputs_;    // outputs_: logits, then next states
  bool bounded_ = false;                   // reads at most capacity_ tokens
  std::int64_t position_ = 0, capacity_ = 0;
};

}  // namespace nestgrad
