#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "engine/core/device.h"
#include "engine/core/error.h"
#include "ops/kernels.h"

// With NESTGRAD_DEVICE=cuda all functions run on a GPU, whose name is said, with NESTGRAD_ISA=v4 on kernels for
// AVX-512; where there is none nothing is tested, and it is said. Nor with NESTGRAD_ISA_OF_OTHERS as well where that
// is the processor's best, under which all tests run anyway.
int main(int argc, char** argv) {
  try {
    nestgrad::kernels();
  } catch (const nestgrad::ConfigError& e) {
    std::printf("SKIPPED: %s\n", e.what());
    return 0;
  }
  const char* isa = std::getenv("NESTGRAD_ISA");
  if (isa && std::getenv("NESTGRAD_ISA_OF_OTHERS") && isa == nestgrad::instruction_sets().back()) {
    std::printf("SKIPPED: all tests run kernels for %s here\n", isa);
    return 0;
  }
  const char* device = std::getenv("NESTGRAD_DEVICE");
  if (device && std::string_view(device).starts_with("cuda") && nestgrad::Device::cuda_count() == 0) {
    std::printf("SKIPPED: no CUDA device: %s\n", nestgrad::Device::why_no_cuda().c_str());
    return 0;
  }
  try {
    if (device && *device) std::printf("on %s\n", nestgrad::Device::of(device).description().c_str());
  } catch (const nestgrad::Error& e) {
    std::printf("%s\n", e.what());
    return 1;
  }
  return doctest::Context(argc, argv).run();
}
