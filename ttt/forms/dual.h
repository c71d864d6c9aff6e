// The dual form, and over blocks of any length the parallel form: gradients as outer products a_s' b_s, weights
// applied as masked attention (the laws of ttt/forms/law.h say with which mask).
#pragma once

#include "ttt/forms/factors.h"

namespace nestgrad::ttt {

class DualForm : public Form {
 public:
  using Form::Form;
  Laws prepare(const State& state, const Gates& gates, const Shape& lead, std::int64_t tokens,
               Tensor position) const override;
  BlockResult run(const State& state, const Block& block, const Laws& laws) const override;

 protected:
  // Factors of the block's gradients, without rates.
  virtual Factors factors(const State& state, const Block& block, const Laws& laws) const;
};

}  // namespace nestgrad::ttt
