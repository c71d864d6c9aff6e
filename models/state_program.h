// StateProgram: what one token, or the end of a chunk, makes of the states that a model carries, as a plan for a number
// of sequences. A Decoder has some for its batch, Streams some for each number of streams. One thread at a time may run
// one; several may be run at once.
#pragma once

#include <map>
#include <set>

#include "models/language_model.h"
#include "models/traced_model.h"

namespace nestgrad {

// What a model carries from token to token.
struct CarriedStates {
  std::vector<std::string> names;
  std::vector<Array> initial;     // before the first token
  std::set<std::int64_t> chunks;  // behind every so many tokens something is learnt (Stream::carry_chunk)
  std::map<std::string, ttt::Stream::Count> counters;  // those that count tokens

  // apart: each of the `batch` sequences stands at a place of its own (Stream::counter_shape). ConfigError for
  // parameters that are not the model's, GraphError for a state that is never carried on.
  static CarriedStates of(const LogitsFn& model, const StateDict& params, DType dtype, std::int64_t batch,
                          bool apart);
  std::size_t find(const std::string& name) const;  // its place, or names.size()
  // ConfigError unless it holds these states, in these shapes, and counters that stand where they do after so many tokens.
  void check_fits(const StateDict& state, std::int64_t position) const;
  // ConfigError, in the name of `who`, where a counter ends before the token behind so many.
  void check_counts(const char* who, std::int64_t position) const;
};

// ConfigError, in the name of `who`, unless a model may have read so many tokens and reads on. capacity: the most that it
// reads; 0: no bound.
void check_position(const char* who, std::int64_t position, std::int64_t capacity);

// A model's parameters as its programs read them: numbers of its own, whatever the caller writes into its arrays later (copies where the
// caller keeps these). Matrices W that products x W' read are kept transposed, in panels of
// columns, once for all programs: with the few rows of x that there are, to bring them into that order at each product
// takes longer than to multiply.
class FixedParameters {
 public:
  explicit FixedParameters(StateDict params) : params_(std::move(params)) {
    for (auto& [name, value] : params_) value = std::move(value).unshared();
  }
  const StateDict& all() const { return params_; }
  const Array& named(const std::string& name) const { return params_.at(name); }
  const Array& in_panels(const std::string& name);  // a matrix

 private:
  StateDict params_, panels_;
};

class StateProgram {
 public:
  struct Sizes {
    std::int64_t batch = 1;
    bool apart = false;
    // 0: reads a token; else what the end of chunks of so many tokens makes of the states.
    std::int64_t learns = 0;
  };
  // ConfigError if a state is called as a parameter is.
  StateProgram(const LogitsFn& model, const CarriedStates& carried, FixedParameters& params, DType dtype,
               const Sizes& sizes);
  StateProgram(const StateProgram&) = delete;
  StateProgram& operator=(const StateProgram&) = delete;

  // tokens i32 [batch]: those that are read, or those that follow the chunk. states, one for each of
  // CarriedStates::names, become what they are after it; where it throws they are what they were.
  void run(const Array& tokens, std::vector<Array>& states);
  // Of the last tokens read, [batch, vocab], on the CPU; overwritten by the next run.
  const Array& logits() const { return outputs_[0]; }
  std::int64_t vocab_size() const { return plan_->output_specs()[0].shape[1]; }
  const Device& device() const { return plan_->device(); }
  // Places of the states that it reads, and of those that it changes.
  std::vector<std::size_t> reads() const;
  std::vector<std::size_t> changes() const;

 private:
  std::unique_ptr<Plan> plan_;
  // Of a state that becomes itself with one row put into it: which, and the outputs that say what and where.
  struct Row {
    std::size_t state, row, place;
  };
  std::size_t first_change_ = 0;                             // among the outputs
  std::vector<std::pair<std::size_t, std::size_t>> states_;  // input of the plan, place of a state
  std::vector<std::size_t> changes_;  // of each output from first_change_ on, place of a state
  std::vector<Row> rows_;
  std::vector<Array> inputs_, outputs_;
};

// ConfigError, with the op, unless a model keeps sequences that are read together apart: what it answers each, and carries of it, is
// made of its own tokens and states. Shown on its trace. learns: as in StateProgram::Sizes.
void check_apart(const LogitsFn& model, DType dtype, std::int64_t learns);

}  // namespace nestgrad
