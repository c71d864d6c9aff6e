// One optimiser step a chunk. Gates of the optimiser are averaged over the chunk; rates weigh its tokens.
#pragma once

#include "ttt/forms/factors.h"

namespace nestgrad::ttt {

class PerChunkForm : public Form {
 public:
  PerChunkForm(const FormOptions& options, bool factored) : Form(options), factored_(factored) {}
  BlockResult run(const State& state, const Block& block, const Prepared* prepared) const override;

  // The gradient of the block's tokens at these weights, with rates, mean and joint norms.
  std::vector<Tensor> gradients(const Weights& at, const Block& block) const;
  State learnt(State state, const Block& block) const;
  Tensor predict(const Weights& w, Tensor x) const;
  Tensor loss(const Weights& w, Tensor k, Tensor v) const;

 private:
  std::vector<Tensor> direct(const Weights& at, const Block& block) const;
  std::vector<Tensor> factored(const Weights& at, const Block& block) const;
  bool factored_;
};

}  // namespace nestgrad::ttt
