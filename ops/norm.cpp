// Normalisations over the last axis, and the Euclidean norm, as composites.
#include "ops/ops.h"

namespace nestgrad {

Tensor layer_norm(Operand x, Operand gain, Operand shift, double eps) {
  const CompositeScope scope("layer_norm", x.loc);
  const Tensor centred = x.tensor() - mean(x.tensor(), {-1}, kKeep);
  const Tensor scale = rsqrt(mean(square(centred), {-1}, kKeep) + eps);
  return centred * scale * gain + shift;
}

Tensor rms_norm(Operand x, Operand gain, double eps) {
  const CompositeScope scope("rms_norm", x.loc);
  return x.tensor() * rsqrt(mean(square(x.tensor()), {-1}, kKeep) + eps) * gain;
}

Tensor l2_norm(Operand x, double eps) {
  const CompositeScope scope("l2_norm", x.loc);
  return x.tensor() * rsqrt(sum(square(x.tensor()), {-1}, kKeep) + eps);
}

Tensor norm(Operand x, const std::vector<int>& axes, bool keep) {
  const CompositeScope scope("norm", x.loc);
  const Tensor s = sum(square(x.tensor()), axes, keep);
  // Zero slices take a root of 1 that no derivative reaches. Not greater(s, 0), which takes NaN for a zero.
  const Tensor is_zero = equal(s, 0.0);
  return select(is_zero, 0.0, sqrt(select(is_zero, 1.0, s)));
}

}  // namespace nestgrad
