// Runs of language models of bytes: what the experiments on text share.
#pragma once

#include <memory>
#include <optional>

#include "models/trainer.h"
#include "reproduce/experiment.h"

namespace nestgrad::reproduce {

// The text of --data, or the Eigen headers. It is read once for each path and shared; any thread may ask.
// IoError and ConfigError: ByteCorpus::load, with 1024 bytes at least in each part.
ByteCorpus corpus_of(const Settings& settings);

struct LanguageRun {
  LanguageModelConfig model;
  std::optional<ttt::System> system;  // the learner of every layer, instead of the one of ttt_layer_type
  // What every layer has to learn; empty: projections of its input (LanguageModelOptions::task).
  decltype(LanguageModelOptions::task) task;
  std::int64_t steps = 600, batch = 4, context = 512;
  std::int64_t windows = 64;  // of validation text, at most
  double lr = 3e-3;
};

// A model of bytes with these sizes, its SwiGLU as wide as those of the published ones.
LanguageModelConfig model_of(std::int64_t width, std::int64_t layers, std::int64_t heads,
                             std::int64_t mini_batch, const std::string& ttt_layer_type = "linear");

// The model of a run, as a function.
LogitsFn function_of(const LanguageRun& run);
// The same learner, run by a policy that differs: with_policy(lact, [](ttt::Policy& p) { p.ascent = true; }).
ttt::System with_policy(ttt::System system, std::function<void(ttt::Policy& policy)> change);

// A trainer at its start, with the seed of `task`. To read the same weights with another learner, make a second one and
// start_from() the first's parameters.
std::unique_ptr<Trainer> trainer_of(const LanguageRun& run, const Task& task);

// All steps. `share`: of the task's work, for its progress. -> the loss of each training batch; ValueError when one is
// not finite. Adds "tokens/s" to `clock`.
std::vector<double> train(Trainer& trainer, const LanguageRun& run, const Task& task, Measured& out,
                          double share = 1);

// Adds what a trained model makes of the validation text: "loss", "first quarter" and "last quarter" of the context (nats
// per byte), and the curve "loss by position", means over `bins` equal parts of the context.
Validation measure(const Trainer& trainer, const LanguageRun& run, Measured& out, std::size_t bins = 32);

// How far two models are apart that have the same parameters, on tokens i32 [batch, time + 1]. Both are computed in f64:
// the losses of all tokens and the gradients of their mean, each array relative to its largest number.
struct Apart {
  double losses = 0, gradients = 0;
};
Apart apart_in_f64(const LogitsFn& a, const LogitsFn& b, const StateDict& params, const Array& tokens);

// Means over equal parts; as many as there are numbers, if there are fewer.
std::vector<double> binned(const std::vector<double>& numbers, std::size_t bins);

}  // namespace nestgrad::reproduce
