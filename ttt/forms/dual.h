// The dual form, derived (FORMS: state law S_t = sum_j c_j S_j + sum z[t,s] G_s with G_s = a_s' b_s).
#pragma once

#include "ttt/forms/factors.h"

namespace nestgrad::ttt {

class DualForm : public Form {
 public:
  using Form::Form;
  std::unique_ptr<Prepared> prepare(const State& state, const Gates& gates, const Shape& lead,
                                    std::int64_t tokens, Tensor position) const override;
  BlockResult run(const State& state, const Block& block, const Prepared* prepared) const override;

 protected:
  struct Laws : Prepared {
    std::vector<BlockLaw> each;  // per weight
    std::vector<Reads> points;   // per weight: where gradients are taken (wy)
    std::vector<Tensor*> tensors() override;
    std::unique_ptr<Prepared> clone() const override { return std::make_unique<Laws>(*this); }
  };
  // Factors of the block's gradients, without rates.
  virtual Factors factors(const State& state, const Block& block, const Laws& laws) const;
};

}  // namespace nestgrad::ttt
