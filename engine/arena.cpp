#include "engine/arena.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace nestgrad {

ArenaLayout lay_out(const std::vector<Lifetime>& buffers) {
  const auto padded = [&](std::size_t i) {
    return (buffers[i].bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
  };
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>{}, padded);

  ArenaLayout layout{.offsets = std::vector<std::size_t>(buffers.size(), 0)};
  std::vector<std::size_t> placed;  // by offset
  for (std::size_t i : order) {
    if (padded(i) == 0) continue;
    std::size_t best = 0, best_gap = std::numeric_limits<std::size_t>::max(), end = 0;
    bool found = false;
    for (std::size_t j : placed) {
      if (buffers[j].last < buffers[i].first || buffers[i].last < buffers[j].first) continue;
      const std::size_t start = layout.offsets[j];
      if (start >= end + padded(i) && start - end < best_gap)
        best = end, best_gap = start - end, found = true;
      end = std::max(end, start + padded(j));
    }
    layout.offsets[i] = found ? best : end;
    layout.bytes = std::max(layout.bytes, layout.offsets[i] + padded(i));
    placed.insert(std::ranges::upper_bound(placed, layout.offsets[i], {},
                                           [&](std::size_t j) { return layout.offsets[j]; }),
                  i);
  }
  return layout;
}

}  // namespace nestgrad
