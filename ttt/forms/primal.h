#pragma once

#include "ttt/forms/form.h"

namespace nestgrad::ttt {

// The primal form: every token has weights of its own. Nothing needs to be proved about tokens or uses, and
// the optimiser's step is simply run, token after token.
class PrimalForm : public Form {
 public:
  using Form::Form;
  BlockResult run(const State& state, const Block& block, const Laws&) const override {
    return run_from(state, state, block);
  }
  // Gradients at the weights of `at` (the beginning of the chunk), steps from `running`.
  BlockResult run_from(const State& at, const State& running, const Block& block) const;

 private:
  struct Walk;
  std::vector<Tensor> gradients(const State& at, const Block& block) const;
  Walk step_along(const State& at, const State& running, const std::vector<Tensor>& g,
                  const Block& block) const;
};

}  // namespace nestgrad::ttt
