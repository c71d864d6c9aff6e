// Sums that begin with nothing.
#pragma once

#include "ops/ops.h"

namespace nestgrad {

// Adds `part` to `sum`, which is undefined as long as there is nothing in it.
inline void accumulate(Tensor& sum, Tensor part, Loc loc = Loc::current()) {
  sum = sum.defined() ? Operand(sum, loc) + Operand(part, loc) : part;
}

}  // namespace nestgrad
