// The inner loop of a case by hand: a plain loop over tokens, `grad` of one token's loss at a time, and the
// optimisers' formulas written anew. It shares no code with ttt/forms.
#pragma once

#include "tests/fuzz/random_loop_case.h"

namespace nestgrad::fuzz {

// With losses.
ttt::InnerLoopResult loop_by_hand(const TracedCase& traced);

}  // namespace nestgrad::fuzz
