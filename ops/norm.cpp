// Normalisations over the last axis, as composites.
#include "ops/ops.h"

namespace nestgrad {

Tensor layer_norm(Operand x, Operand gain, Operand shift, double eps) {
  const Scope scope("layer_norm", x.loc);
  const Tensor centred = x.tensor - mean(x.tensor, {-1}, kKeep);
  const Tensor scale = rsqrt(mean(square(centred), {-1}, kKeep) + eps);
  return centred * scale * gain + shift;
}

Tensor rms_norm(Operand x, Operand gain, double eps) {
  const Scope scope("rms_norm", x.loc);
  return x.tensor * rsqrt(mean(square(x.tensor), {-1}, kKeep) + eps) * gain;
}

Tensor l2_norm(Operand x, double eps) {
  const Scope scope("l2_norm", x.loc);
  return x.tensor * rsqrt(sum(square(x.tensor), {-1}, kKeep) + eps);
}

}  // namespace nestgrad
