// What the kernels of clusters are given at each launch: where inputs and outputs are.
#pragma once

#include <cstddef>

namespace nestgrad::cuda {

constexpr int kMostIn = 16, kMostOut = 20;  // as engine/plan/cluster.h has them
constexpr unsigned kClusterThreads = 256;   // of a block

struct Pointers {
  const std::byte* in[kMostIn];
  std::byte* out[kMostOut];
};

}  // namespace nestgrad::cuda
