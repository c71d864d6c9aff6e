// What a CUDA thread sees of its block, and the places where it waits for others.
#pragma once

#include <cstdint>

#include "engine/core/source_location.h"
#include "include/vector_types.h"

namespace nestgrad::emulator {

using Where = SourceLocation;

// The thread that runs now.
struct Here {
  uint3 thread, block;
  dim3 block_extent, grid_extent;
  unsigned lane;          // within the warp
  unsigned char* shared;  // the block's dynamic shared memory, ends 16-byte aligned before a closed page
};
extern Here here;

inline unsigned char* shared_memory() { return here.shared; }

// Waits until all threads of the block are here.
void meet_block(Where where);

// What a lane gets from a meeting of the lanes in a mask.
struct Met {
  std::uint64_t value;  // what the source lane brought; all bits set if it is not in the mask
  unsigned votes;       // lanes that brought something other than 0
};
Met meet_lanes(const char* call, unsigned mask, std::uint64_t value, unsigned source, Where where);

// The same, and what one lane wrote before, the others see after. Lanes beyond the block's end may be named.
void sync_lanes(unsigned mask, Where where);

[[noreturn]] void stop_kernel(const char* reason, Where where);

}  // namespace nestgrad::emulator
