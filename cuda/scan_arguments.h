// What the kernel of a scan is told at each launch, beside the scan's table and the steps.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/core/host_device.h"

namespace nestgrad::cuda {

constexpr int kMostExternals = 256, kMostBases = 256;
constexpr unsigned kScanThreads = 256;  // of a block

struct Bases {
  std::byte* at[kMostBases];
};

// Does a thread take each output of a reduction inside of a scan, and not a warp? By what each way takes, roughly, in cycles: a warp
// needs 250 to put together what its lanes have.
NESTGRAD_HOST_DEVICE constexpr bool sums_by_threads(std::int64_t outputs, std::int64_t terms) {
  constexpr std::int64_t kThreads = kScanThreads, kWarps = kThreads / 32, kTerm = 8, kTogether = 250;
  return (outputs + kThreads - 1) / kThreads * (terms * kTerm + 30) <=
         (outputs + kWarps - 1) / kWarps * ((terms + 31) / 32 * kTerm + kTogether);
}

}  // namespace nestgrad::cuda
