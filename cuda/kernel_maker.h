// Kernels that are made of text while a program runs: compiled by NVRTC for the device at hand, kept in the user's cache
// (engine/plan/code_cache.h), and loaded.
#pragma once

#include <string>

namespace nestgrad::cuda {

// What the text of every kernel begins with: names of C++ that NVRTC has no headers for, the formulas of ops/elementwise.def, and the
// parts of scans. Whole programs: also for nvcc, and, as C++, for the emulator.
std::string kernel_headers();

struct MadeKernel {
  const void* function = nullptr;  // for launch(); kept until the process ends
  std::string why_not;             // where there is none
};

// text: of an extern "C" __global__ function of this name, without kernel_headers(). For the device of this index, which is the
// thread's. What went wrong once is not tried again.
MadeKernel make_kernel(const std::string& text, const std::string& name, int device);

}  // namespace nestgrad::cuda
