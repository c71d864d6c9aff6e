// What the text of clusters and of bodies of loops is compiled with: the flags of the kernels (cmake/NestgradKernels.cmake), and the
// headers that they are made of.
#include "engine/plan/native.h"
#include "ops/kernels.h"

extern const char* const nestgrad_native_headers[];  // made by cmake/NestgradNative.cmake
extern const int nestgrad_native_header_count;

namespace nestgrad {

NativeTarget native_target() {
  NativeTarget out{.instruction_set = kernels().name,
                   .flags = {"-O3", "-ffp-contract=off", "-fno-math-errno", "-w"},
                   .headers = {"#define NESTGRAD_ISA compiled\n#include <cstddef>\n"}};
  // Without an instruction for fused multiply-adds a formula is so long that its compilation takes minutes.
#if defined(__x86_64__)
  if (out.instruction_set == "v4") out.flags.emplace_back("-march=x86-64-v4");
  else if (out.instruction_set == "v3") out.flags.emplace_back("-march=x86-64-v3");
  else out.flags.clear();
#endif
  for (int i = 0; i < nestgrad_native_header_count; ++i) out.headers.emplace_back(nestgrad_native_headers[i]);
  return out;
}

}  // namespace nestgrad
