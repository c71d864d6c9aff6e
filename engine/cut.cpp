#include "engine/cut.h"

#include <algorithm>

namespace nestgrad {

void MinimumCut::add(int from, int to, std::int64_t price) {
  edges_of_[static_cast<std::size_t>(from)].push_back(edges_.size());
  edges_.push_back({to, price});
  edges_of_[static_cast<std::size_t>(to)].push_back(edges_.size());
  edges_.push_back({from, 0});
}

std::vector<char> MinimumCut::find(int start, int end) {
  constexpr std::size_t kNone = ~std::size_t{0};
  for (;;) {
    std::vector<std::size_t> came_by(edges_of_.size(), kNone);
    std::vector<char> reached(edges_of_.size(), 0);
    std::vector<int> queue{start};
    reached[static_cast<std::size_t>(start)] = 1;
    for (std::size_t next = 0; next < queue.size() && !reached[static_cast<std::size_t>(end)]; ++next)
      for (std::size_t e : edges_of_[static_cast<std::size_t>(queue[next])]) {
        const auto to = static_cast<std::size_t>(edges_[e].to);
        if (edges_[e].left == 0 || reached[to]) continue;
        reached[to] = 1, came_by[to] = e;
        queue.push_back(edges_[e].to);
      }
    if (!reached[static_cast<std::size_t>(end)]) return reached;
    std::int64_t most = kNever;
    const auto along = [&](auto fn) {
      for (int v = end; v != start; v = edges_[came_by[static_cast<std::size_t>(v)] ^ 1].to)
        fn(came_by[static_cast<std::size_t>(v)]);
    };
    along([&](std::size_t e) { most = std::min(most, edges_[e].left); });
    along([&](std::size_t e) { edges_[e].left -= most, edges_[e ^ 1].left += most; });
  }
}

}  // namespace nestgrad
