// SharedNodes: which node of a graph there is for a call already.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/core/tensor.h"

namespace nestgrad {

// Nodes by a hash of what they are. Side by side in memory, as large graphs look up each of their nodes.
class SharedNodes {
 public:
  // The first of the hash that `is_it` takes; -1: none.
  template <class IsIt>
  NodeId find(std::size_t hash, IsIt is_it) const {
    if (slots_.empty()) return -1;
    for (std::size_t at = home(hash); slots_[at].id >= 0; at = (at + 1) & (slots_.size() - 1))
      if (slots_[at].hash == hash && is_it(slots_[at].id)) return slots_[at].id;
    return -1;
  }
  void add(std::size_t hash, NodeId id);

 private:
  struct Slot {
    std::size_t hash = 0;
    NodeId id = -1;
  };
  std::size_t home(std::size_t hash) const {  // its upper bits depend on all of it
    return static_cast<std::size_t>((hash * 0x9e3779b97f4a7c15ULL) >> 32) & (slots_.size() - 1);
  }

  std::vector<Slot> slots_;  // a power of two, at most half of them taken
  std::size_t taken_ = 0;
};

}  // namespace nestgrad
