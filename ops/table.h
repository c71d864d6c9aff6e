// The rows of the op table (engine/core/op.h). Each is a constant: no code runs to make it, so that ops can
// be used before main begins, and every thread may read it.
#pragma once

#include "engine/core/op.h"

namespace nestgrad {

#define OP(NAME) extern const Op NAME##_op;
#include "ops/table.def"

}  // namespace nestgrad
