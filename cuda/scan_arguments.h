// What the kernel of a scan is told at each launch, beside the scan's table and the steps.
#pragma once

#include <cstddef>

namespace nestgrad::cuda {

constexpr int kMostExternals = 256, kMostBases = 256;
constexpr unsigned kScanThreads = 256;  // of a block

struct Bases {
  std::byte* at[kMostBases];
};

// At the front of a block's shared memory: where the step's values are, then what the carries are now; then the slice's memory.
constexpr int kScanTableBytes = 2 * kMostExternals * static_cast<int>(sizeof(std::byte*));

}  // namespace nestgrad::cuda
