// Arena: offsets for buffers whose lifetimes are known in advance.
#pragma once

#include <cstddef>
#include <vector>

namespace nestgrad {

// One buffer of the arena, live from step `first` to step `last` inclusive.
struct Lifetime {
  std::size_t bytes = 0;
  int first = 0, last = 0;
};

struct ArenaLayout {
  std::vector<std::size_t> offsets;  // one per buffer, multiples of kArenaAlignment
  std::size_t bytes = 0;             // of the whole arena
};

inline constexpr std::size_t kArenaAlignment = 64;

// Buffers that are live at the same time do not overlap. Up to kMostBySize buffers, the largest is placed
// first, each into the tightest gap left by those that are live with it: compact, and quadratic in their
// number. More are placed in the order in which they begin to live, each into the tightest gap that is free
// then: n log n.
ArenaLayout lay_out(const std::vector<Lifetime>& buffers);
inline constexpr std::size_t kMostBySize = 4096;

}  // namespace nestgrad
