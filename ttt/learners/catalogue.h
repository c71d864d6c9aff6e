// One function per published system: those of ttt/learners/catalogue.def.
#pragma once

#include "ttt/system.h"

namespace nestgrad::ttt {

#define SYSTEM(NAME) System NAME();
#define SYSTEMS(NAME) std::vector<System> NAME();
#include "ttt/learners/catalogue.def"

}  // namespace nestgrad::ttt
