// The inner loop of a lesson by hand: a plain loop over tokens, `grad` of one token's loss at a time, and the
// optimisers' formulas written anew. It shares no code with ttt/forms.
#pragma once

#include "tests/fuzz/random_lesson.h"

namespace nestgrad::fuzz {

// With losses.
ttt::InnerLoopResult loop_by_hand(const Scene& scene);

}  // namespace nestgrad::fuzz
