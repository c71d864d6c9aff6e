// Cases as systems: what the tools for whole systems say of them. Each throws a Finding.
#pragma once

#include "tests/fuzz/random_loop_case.h"
#include "ttt/system.h"

namespace nestgrad::fuzz {

// Are queries, keys and values alike?
bool is_system(const LoopCase& loop);
// The case must outlive it.
ttt::System system_of(const LoopCase& loop);
// conformance()
void check_battery(const LoopCase& loop);
// The claims of look/numbers.h.
void check_views(const LoopCase& loop);
// TTTLayer: token by token as all at once; it refuses what is not causal.
void check_layer(const LoopCase& loop);

}  // namespace nestgrad::fuzz
