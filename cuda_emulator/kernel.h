// Running one kernel: every thread of a block is a fiber, blocks run one after another.
#pragma once

#include <string>

#include "cuda_emulator/emulator.h"
#include "cuda_emulator/launch.h"

namespace nestgrad::emulator {

// Thrown when a kernel does what it must not. Ends the work of its device.
struct Fault {
  cudaError_t code;
  std::string text;
  const void* address = nullptr;  // that could not be accessed, if this was the fault
};

std::string describe(const Launch& launch);

void run_kernel(const Launch& launch, Order order);

}  // namespace nestgrad::emulator
