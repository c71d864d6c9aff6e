// Cases whose sequences are cut in time, of which each rank of a group has a slice (ttt/slices.h).
#pragma once

#include "tests/fuzz/random_loop_case.h"

namespace nestgrad::fuzz {

struct Cut {
  int slices = 2;
  std::int64_t chunks = 1;  // of a slice
  int more = 0;             // tokens of a slice beside them
};

// By exchange and by pipeline, where that is not refused: answers and derivatives of the whole. A Finding if they are not, and if
// slices of whole chunks are not passed on.
void check_slices(const LoopCase& loop, const Cut& cut, int order);

}  // namespace nestgrad::fuzz
