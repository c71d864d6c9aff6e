// One optimiser step a chunk, chunk after chunk. Gates of the optimiser are averaged over the chunk; rates weigh
// its tokens.
#pragma once

#include "ttt/forms/factors.h"

namespace nestgrad::ttt {

// The primal form: a derivative by each weight, of the losses times their rates; tokens may mix, and weights may be used in any way.
class PerChunkForm : public Form {
 public:
  using Form::Form;
  BlockResult run(const State& state, const Block& block, const Laws&) const override;

  // The gradient of the block's tokens at these weights, with rates and mean, before the optimiser does anything.
  std::vector<Tensor> mean_gradients(const Weights& at, const Block& block) const;
  // The same with the optimiser's joint norms, as a step takes it.
  std::vector<Tensor> gradients(const Weights& at, const Block& block) const;
  State learnt(State state, const Block& block) const;
  Tensor predict(const Weights& w, Tensor x) const;
  Tensor loss(const Weights& w, Tensor k, Tensor v) const;

 protected:
  virtual std::vector<Tensor> summed_gradients(const Weights& at, const Block& block) const;
};

// The dual form: from the factors, one derivative whatever the rates.
class FactoredChunkForm : public PerChunkForm {
 public:
  using PerChunkForm::PerChunkForm;

 protected:
  std::vector<Tensor> summed_gradients(const Weights& at, const Block& block) const override;
};

}  // namespace nestgrad::ttt
