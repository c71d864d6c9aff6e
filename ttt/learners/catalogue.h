// One function per published system: those of ttt/learners/catalogue.def.
#pragma once

#include "ttt/system.h"

namespace nestgrad::ttt {

// A user's macros with the names of catalogue.def stay what they are.
#pragma push_macro("SYSTEM")
#pragma push_macro("SYSTEMS")
#undef SYSTEM
#undef SYSTEMS
#define SYSTEM(NAME) System NAME();
#define SYSTEMS(NAME) std::vector<System> NAME();
#include "ttt/learners/catalogue.def"
#pragma pop_macro("SYSTEM")
#pragma pop_macro("SYSTEMS")

}  // namespace nestgrad::ttt
