// MesaNet (von Oswald et al. 2025): two memories, H_kk = sum k' k and H_kv = sum k' v; a query is answered by
// the linear regression of all values on all keys so far, o = q (H_kk + diag(lamb))^-1 H_kv.
#pragma once

#include "ttt/learner.h"

namespace nestgrad::ttt {

class MesaNet : public Learner {
 public:
  static constexpr int kExact = 0;
  // start: H_kk [heads, dim, dim], H_kv [heads, dim, out]; lamb [heads, 1, dim], positive. The system is
  // solved by so many steps of conjugate gradients, or exactly (which uses H_kk as a matrix: no form but the
  // primal one).
  MesaNet(Weights start, Tensor lamb, int steps);
  // Zeros for these sizes.
  static Weights memories(DType dtype, std::int64_t heads, std::int64_t dim, std::int64_t out);

  Weights init() const override { return start_; }
  Tensor predict(const Weights& w, Tensor q) const override;
  Tensor loss(const Weights& w, Tensor k, Tensor v) const override;
  InnerOptimizer optimizer() const override { return InnerOptimizer().keep(gate("forget")); }
  Description describe() const override;

 private:
  Tensor solved(const Weights& w, Tensor q) const;
  Weights start_;
  Tensor lamb_;
  int steps_;
};

}  // namespace nestgrad::ttt
