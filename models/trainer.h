// Trainer: a language model in training on a text (models/training.h has what is the same for every model), and its place
// in the text. Everything that a step depends on (parameters, optimiser state, step number) is in the checkpoint; batches and
// random numbers are functions of seed and step, so a resumed run is bit-identical to one that was never
// interrupted.
#pragma once

#include "models/documents.h"
#include "models/language_model.h"
#include "models/training.h"
#include "models/validation.h"

namespace nestgrad {

struct TrainingOptions {
  LanguageModelConfig model;
  std::int64_t steps = 1000, batch = 4, context = 256;  // context: tokens that are predicted in a window
  double lr = 3e-3;
  std::int64_t warmup = 50;
  std::uint64_t seed = 0;
  // 0: windows of the running text. n > 0: documents packed into windows, each read from its own beginning, at multiples of
  // n tokens (models/documents.h): a multiple of the tokens in a chunk of every inner loop.
  std::int64_t pack = 0;
  int checkpoint_every = 0;       // of the scans, as in ScanOptions
  std::size_t memory_budget = 0;  // of the plan, as in PlanOptions
  AdamWOptions adamw = {};
  // Parts of a batch, which must be a multiple of them, that several processes may share (models/training.h): the number of grains
  // changes bits, that of processes does not.
  std::int64_t grains = 1;
  // Parts of one length that each sequence is cut into, each of which a thread of some process has (models/training.h): a divisor of
  // the context and of the layers' heads. Their number changes bits, that of processes does not.
  std::int64_t slices = 1;
  std::shared_ptr<Transport> processes = nullptr;  // null: this one alone

  void check() const;                // ConfigError that names the field and its range
  void check_without_model() const;  // all but `model`
  // What a resumed run must share, but for the model, and for `steps`, which only shape the schedule; what is left
  // out (checkpoint_every, memory_budget, processes) changes no bit.
  std::string to_json() const;
};

// Grains of a batch where no one says how many: its largest divisor up to 8.
std::int64_t default_grains(std::int64_t batch);

struct StepResult {
  std::int64_t step;  // number of steps done
  double loss, grad_norm, rate;
};

class Trainer {
 public:
  // Starts from random parameters (seed).
  Trainer(const TrainingOptions& options, ByteCorpus corpus);
  // The same of any model of bytes; options.model is then not looked at. `model` may have parameters that no
  // loss depends on (a learner that ignores its values): they stay as they start, see unused_parameters().
  Trainer(const TrainingOptions& options, ByteCorpus corpus, const LogitsFn& model);

  // Back to before the first step, with these parameters, f32; steps do not write into the caller's arrays.
  // ConfigError unless they are the model's.
  void start_from(StateDict params) { training_.start_from(std::move(params)); }

  // One step of training. ValueError if loss or gradient is not finite; parameters and moments are then, bit for
  // bit, those before the step.
  StepResult step();
  // After a step that threw ValueError: where its first value that is not finite was made.
  std::optional<NonFinite> why_not_finite() const { return training_.why_not_finite(); }
  std::int64_t steps_done() const { return training_.steps_done(); }

  // At most `max_windows` windows of the validation text, i32 [windows, context + 1], in whole batches.
  Array validation_windows(std::int64_t max_windows) const;
  // windows: as above. An inner rate's ramp is taken for over, as it is for a Decoder.
  // With several processes every one calls it, and has the result.
  Validation validate(const Array& windows) const;
  // The same of packed documents, where these are what is trained on; ConfigError otherwise.
  PackedWindows validation_documents(std::int64_t max_windows) const;
  Validation validate(const PackedWindows& windows) const;

  // Parameters, optimiser, step, options in one safetensors file. Written atomically.
  // With several processes rank 0 writes, and all call it.
  void save(const std::string& path) const { training_.save(path, identity()); }
  // ConfigError that says what differs if it was written with other options, by a model with other parameters,
  // while training on other text, or after start_from() with other weights than start_from() here (which need
  // not be called); IoError if it cannot be read. Nothing changes on error.
  void load(const std::string& path) { training_.load(path, identity()); }

  StateDict parameters() const { return training_.parameters(); }  // copies
  // Names of those that the loss does not depend on. No step changes them.
  const std::vector<std::string>& unused_parameters() const { return training_.unused(); }
  std::int64_t parameter_count() const { return training_.parameter_count(); }
  std::size_t arena_bytes() const { return training_.arena_bytes(); }

 private:
  void trace();
  RunIdentity identity() const;
  // The mean loss of tokens that count: places and counted as in PackedWindows, undefined where nothing is packed.
  Tensor mean_loss(Tensor losses, Tensor counted, Tensor all_counted = {}) const;
  std::vector<Array> batch_of(std::uint64_t step) const;
  std::vector<std::vector<double>> losses_of_slices(const std::vector<Array>& given,
                                                    std::int64_t batch) const;
  Tensor losses_of(const Params& params, Tensor tokens, Tensor step, Tensor places,
                   ttt::Stream& stream) const;

  TrainingOptions options_;
  TokenLossFn loss_;
  std::string config_;  // of the model, as checkpoints have it
  ByteCorpus corpus_;
  Training training_;
};

}  // namespace nestgrad
