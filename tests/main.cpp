#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "engine/device.h"

// With NESTGRAD_DEVICE=cuda all functions run on a GPU; where there is none nothing is tested, and it is
// said.
int main(int argc, char** argv) {
  const char* device = std::getenv("NESTGRAD_DEVICE");
  if (device && std::string_view(device).starts_with("cuda") && nestgrad::Device::cuda_count() == 0) {
    std::printf("SKIPPED: no CUDA device: %s\n", nestgrad::Device::why_no_cuda().c_str());
    return 0;
  }
  return doctest::Context(argc, argv).run();
}
