// A memory that forgets each of its inputs at a speed of its own.
#pragma once

#include <nestgrad/ttt/system.h>

nestgrad::ttt::System forgetful_memory();
