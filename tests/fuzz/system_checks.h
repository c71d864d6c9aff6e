// Lessons as systems: what the tools for whole systems say of them. Each throws a Finding.
#pragma once

#include "tests/fuzz/random_lesson.h"

namespace nestgrad::fuzz {

// Are queries, keys and values alike?
bool is_system(const Lesson& lesson);
// conformance()
void check_battery(const Lesson& lesson);
// The claims of look/numbers.h.
void check_views(const Lesson& lesson);
// TTTLayer: token by token as all at once; it refuses what is not causal.
void check_layer(const Lesson& lesson);

}  // namespace nestgrad::fuzz
