// Stand-in for the toolkit's header: kernels are C++ functions that the emulator runs once per CUDA thread.
// Put this folder first in the include path and compile .cu files as C++.
#pragma once

#include "../device_functions.h"
#include "../launch.h"
#include "cuda_runtime_api.h"
