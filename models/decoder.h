// Decoder: a language model read one token at a time. What each layer carries
// from token to token (fast weights, the gradients of the current mini-batch,
// convolution windows, keys and values) are arrays of this object. A model that
// trains while it reads (TTT-E2E) has a second program, which makes its inner step:
// it runs before the token behind each chunk, which is the chunk's last label.
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
  // Of any model that can be read token by token. ConfigError for one that carries nothing from token to token
  // and yet, read as a whole, lets a token depend on those before it: it would decode something else than it
  // was trained for. check_decoding looks at all models.
  Decoder(const LogitsFn& model, StateDict params, DType dtype, std::int64_t batch);

  // Reads one token of each sequence: i32 [batch] -> logits [batch, vocab] for the next one. ShapeError,
  // DTypeError or ValueError for other tokens; the decoder then stands where it was.
  Array step(const Array& tokens);
  // Back to before the first token.
  void reset();
  std::int64_t position() const { return position_; }
  std::int64_t vocab_size() const { return plan_->output_specs()[0].shape[1]; }  // of the logits
  std::int64_t batch() const { return plan_->output_specs()[0].shape[0]; }
  // Names of what is carried from token to token.
  const std::vector<std::string>& carried() const { return state_names_; }

  // The carried state, to stop here and go on later: bit-identical to not having stopped.
  StateDict state() const;
  void restore(const StateDict& state, std::int64_t position);  // ConfigError if it does not fit

 private:
  // A program between chunks of `every` tokens, on the states of the stream. every 0: there is none.
  struct Learning {
    std::function<void(const Params& params, Tensor next, ttt::Stream& stream)> learn;
    std::int64_t every = 0;
  };
  void trace(const LogitsFn& model, DType dtype, std::int64_t batch, const Learning& learning);
  void trace_learning(const Learning& learning, DType dtype, std::int64_t batch);
  void check_tokens(const Array& tokens) const;
  void check_vocabulary(const Array& tokens) const;
  void learn(const Array& next);

  StateDict params_, initial_;
  TracedModel model_;
  std::shared_ptr<Plan> plan_;
  // The program between chunks: the states that it reads and writes, by their place among state_names_.
  std::int64_t every_ = 0;
  std::shared_ptr<Plan> learn_plan_;
  std::vector<std::pair<std::size_t, std::size_t>> learn_states_;  // input of learn_plan_, state
  std::vector<std::size_t> learn_changed_;                         // output of learn_plan_ -> state
  std::vector<Array> learn_inputs_, learned_;
  std::vector<std::string> state_names_;
  std::vector<std::size_t> state_inputs_;  // where the states stand among the plan's inputs
  std::vector<std::size_t> changed_;       // states that a step changes: those among its outputs
  std::vector<Array> inputs_, outputs_;    // outputs_: logits, then what `changed_` become
  bool bounded_ = false;                   // reads at most capacity_ tokens
  std::int64_t position_ = 0, capacity_ = 0;
};

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
