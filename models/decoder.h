// Decoder: a language model read one token at a time, a batch of sequences in step. What each layer carries from token
// to token (fast weights, the gradients of the current mini-batch, convolution windows, keys and values) are arrays of
// this object. What is learnt from a whole chunk is a program of its own, which runs before the token behind the chunk:
// for a model that trains on its own next-token loss (TTT-E2E), that token is the chunk's last label. For sequences that
// begin and end at times of their own there are Streams (models/streams.h).
#pragma once

#include "engine/core/moved_from.h"
#include "models/state_program.h"

namespace nestgrad {

class Decoder {
 public:
  // `params` must fit the configuration (ConfigError).
  // capacity: most tokens that an attention model will read.
  Decoder(const LanguageModelConfig& config, StateDict params, DType dtype, std::int64_t batch,
          std::int64_t capacity = 0, ttt::FormChoice form = ttt::FormChoice::automatic);
  // Of any model that can be read token by token. ConfigError for one that carries nothing from token to token
  // and yet, read as a whole, lets a token depend on those before it: it would decode something else than it
  // was trained for. check_decoding looks at all models.
  Decoder(const LogitsFn& model, StateDict params, DType dtype, std::int64_t batch);

  // Reads one token of each sequence: i32 [batch] -> logits [batch, vocab] for the next one. ShapeError,
  // DTypeError or ValueError for other tokens; the decoder then stands where it was. So it does after an error of an op of
  // the model, but where a chunk has been learnt from just before, or where there is no memory for the logits: then step() and
  // state() are a ConfigError until reset() or restore().
  Array step(const Array& tokens);
  // Back to before the first token. Where memory is short it throws, as restore() does, and the decoder stands where it was.
  void reset();
  std::int64_t position() const;
  std::int64_t vocab_size() const;  // of the logits
  std::int64_t batch() const;
  // Names of what is carried from token to token.
  const std::vector<std::string>& carried() const;

  // The carried state, to stop here and go on later: bit-identical to not having stopped.
  StateDict state() const;
  void restore(const StateDict& state, std::int64_t position);  // ConfigError if it does not fit

 private:
  void trace(const LogitsFn& model, DType dtype, std::int64_t batch);
  void require_here() const;   // ConfigError of a decoder that was moved from
  void require_whole() const;  // the same, and of one whose state a step has left half made
  void check_tokens(const Array& tokens) const;
  void check_vocabulary(const Array& tokens) const;

  FixedParameters params_;
  CarriedStates carried_;
  std::unique_ptr<StateProgram> step_;
  std::map<std::int64_t, std::unique_ptr<StateProgram>> learn_;  // by their chunks
  std::vector<Array> states_;                                    // of carried_.names
  bool bounded_ = false;                                         // reads at most capacity_ tokens
  std::int64_t position_ = 0, capacity_ = 0;
  bool is_broken_ = false;  // a step failed after the state had changed
  MovedFrom moved_;
};

// The model that a configuration names, read token by token: a LanguageModel, or TTT-E2E, whose inner step is what a
// learning stream asks it for. capacity: most tokens that an attention model will read; ConfigError if it needs one.
LogitsFn decoding_model(const LanguageModelConfig& config, std::int64_t capacity,
                        ttt::FormChoice form = ttt::FormChoice::automatic);

struct CheckDecodingOptions {
  DType dtype = DType::f64;
  // More tokens than what the model takes together: a chunk of an inner loop, a window.
  std::int64_t batch = 2, tokens = 40;
  // Largest difference of a logit, relative to the largest logit; 0: the square root of the type's rounding.
  double tolerance = 0;
  std::uint64_t seed = 1;
  StateDict params = {};  // empty: random ones, away from where they start
};

// Reads random tokens once as a whole and once token by token. ConfigError where the answers differ: it says from
// which token on, and by how much. Belongs in a test of every model of one's own:
//
//   check_decoding([](const Params& params, Tensor tokens, ttt::Stream& stream) { .. });
//
// ValueError if the model's answers are not finite.
void check_decoding(const LogitsFn& model, const CheckDecodingOptions& options = {});

}  // namespace nestgrad
