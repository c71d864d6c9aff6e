// A call of train_lm: what its options ask for, and the model that they describe.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "models/checkpoint.h"
#include "models/trainer.h"

namespace nestgrad {

struct TrainingCall {
  std::string data, learner = "ttt-linear", backbone = "transformer", out = "runs/train_lm", from;
  std::optional<Checkpoint> start;  // what --from names
  TrainingOptions training;
  std::int64_t width = 128, layers = 2, heads = 2, mini_batch = 16, validation_windows = 256,
               save_every = 500, stop_after = 0, sample_bytes = 400, attention_window = kAsPublished,
               inner_warmup = 0;
  double inner_start = 0;
  bool grains_given = false;
  bool pack = false, resume = false, json = false;
};

// The options of the command line that set `o`, with their defaults.
void add_options(CLI::App& app, TrainingCall& o);

LanguageModelConfig model_config(const TrainingCall& o);

// What a ConfigError says in fields of the configuration, with the options that set them.
std::string with_options(std::string text);

// Where packed documents may begin: with the chunks of the layers' inner loops. CLI::ValidationError for layers that read one
// document in each sequence.
std::int64_t alignment_of(const LanguageModelConfig& c);

}  // namespace nestgrad
