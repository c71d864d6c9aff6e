// One function per published system; each is defined in the file of its name.
#pragma once

#include "ttt/system.h"

namespace nestgrad::ttt {

System ttt_linear();
System ttt_mlp();

}  // namespace nestgrad::ttt
