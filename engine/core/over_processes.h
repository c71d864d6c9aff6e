// Which uses of ops are about other processes of a run (ops/collectives.h).
#pragma once

#include "engine/core/attrs.h"

namespace nestgrad {

struct Op;

// Is a use of the op with these attributes one over several processes, or has it a body with one?
bool goes_over_processes(const Op& op, const Attrs& attrs);
// Does it send bytes to others, or receive some, whenever it runs?
bool exchanges(const Op& op, const Attrs& attrs);

}  // namespace nestgrad
