#include "ttt/masked_softmax.h"

#include "engine/core/convert.h"
#include "ops/ops.h"

namespace nestgrad::ttt {

Tensor largest_read(Tensor reads, Tensor scores) {
  return stop_gradient(max(select(reads, scores, -largest_finite(scores.dtype())), {-1}, kKeep));
}

Tensor exponentials(Tensor reads, Tensor scores, Tensor top, Tensor rest) {
  // Of what is not read the difference is zero, so that it cannot overflow.
  Tensor below = select(reads, scores, stop_gradient(top)) - top;
  if (rest.defined()) below = below - rest;
  return select(reads, exp(below), 0.0);
}

Tensor masked_softmax(Tensor reads, Tensor scores, Loc loc) {
  const CompositeScope scope("masked_softmax", loc);
  const Tensor e = exponentials(reads, scores, largest_read(reads, scores));
  return e / sum(e, {-1}, kKeep);
}

}  // namespace nestgrad::ttt
