// Training of what is no model of a text: parameters that are asked for while a loss is traced, AdamW, and one program
// for each kind of batch, all of which train the same parameters. For example of episodes of two lengths:
//
//   OuterTraining training(seed, {.weight_decay = 0});
//   const std::size_t brief = training.add({tokens_of(4)}, loss), lengthy = training.add({tokens_of(64)}, loss);
//   training.step(lengthy, {batch}, 1e-3);
//
// Everything is f32 and on the CPU, and depends on the seed and on the batches alone.
#pragma once

#include "models/optimizer.h"
#include "models/traced_model.h"

namespace nestgrad::reproduce {

class OuterTraining {
 public:
  struct Objective {
    Tensor loss;
    // Of each parameter, in the order in which they were asked for. Empty: that of the loss.
    std::vector<Tensor> gradients = {};
  };
  using ObjectiveFn = std::function<Objective(ParamTable& table, const std::vector<Tensor>& batch)>;

  OuterTraining(std::uint64_t seed, AdamWOptions options) : seed_(seed), options_(options) {}

  // A kind of batch -> its number. ConfigError where it asks for other parameters than the first kind did.
  std::size_t add(const std::vector<Spec>& batch, const ObjectiveFn& objective);
  // One step with this rate -> the loss before it. ValueError if loss or gradient is not finite.
  double step(std::size_t kind, const std::vector<Array>& batch, double rate);
  StateDict parameters() const;  // copies
  std::int64_t steps_done() const { return steps_; }

 private:
  struct Program {
    std::size_t given;
    Plan plan;
  };
  std::uint64_t seed_;
  AdamWOptions options_;
  std::vector<ParamSpec> specs_;
  std::vector<Array> state_;  // parameters, first and second moments
  std::vector<Program> programs_;
  std::int64_t steps_ = 0;
};

}  // namespace nestgrad::reproduce
