#include "engine/plan/cut.h"

#include <algorithm>

#include "engine/core/index.h"

namespace nestgrad {

void MinimumCut::add(int from, int to, std::int64_t price) {
  edges_of_[uz(from)].push_back(edges_.size());
  edges_.push_back({to, price});
  edges_of_[uz(to)].push_back(edges_.size());
  edges_.push_back({from, 0});
}

std::vector<int> MinimumCut::distances(int start, int end) {
  std::vector<int> distance(edges_of_.size(), -1);
  std::vector<int> queue{start};
  distance[uz(start)] = 0;
  for (std::size_t next = 0; next < queue.size() && distance[uz(end)] < 0; ++next)
    for (std::size_t e : edges_of_[uz(queue[next])]) {
      const Edge& edge = edges_[e];
      ++looks_;
      if (edge.left == 0 || distance[uz(edge.to)] >= 0) continue;
      distance[uz(edge.to)] = distance[uz(queue[next])] + 1;
      queue.push_back(edge.to);
    }
  return distance;
}

void MinimumCut::block(int start, int end, const std::vector<int>& distance) {
  std::vector<std::size_t> next(edges_of_.size(), 0);  // of a vertex's edges: those before lead nowhere
  std::vector<std::size_t> path;
  for (int v = start;;) {
    if (v == end) {
      std::int64_t most = kNever;
      for (std::size_t e : path) most = std::min(most, edges_[e].left);
      std::size_t whole = path.size();  // edges before the first that is used up
      for (std::size_t i = path.size(); i-- > 0;) {
        edges_[path[i]].left -= most, edges_[path[i] ^ 1].left += most;
        if (edges_[path[i]].left == 0) whole = i;
      }
      v = edges_[path[whole] ^ 1].to;
      path.resize(whole);
      continue;
    }
    const std::vector<std::size_t>& edges = edges_of_[uz(v)];
    std::size_t& at = next[uz(v)];
    const auto leads_on = [&](const Edge& edge) {
      ++looks_;
      return edge.left > 0 && distance[uz(edge.to)] == distance[uz(v)] + 1;
    };
    while (at < edges.size() && !leads_on(edges_[edges[at]])) ++at;
    if (at < edges.size()) {
      path.push_back(edges[at]);
      v = edges_[edges[at]].to;
    } else if (v == start) {
      return;
    } else {
      v = edges_[path.back() ^ 1].to;
      path.pop_back();
      ++next[uz(v)];
    }
  }
}

std::vector<char> MinimumCut::find(int start, int end) {
  for (;;) {
    const std::vector<int> distance = distances(start, end);
    if (distance[uz(end)] >= 0) {
      block(start, end, distance);
      continue;
    }
    std::vector<char> reached;
    for (int d : distance) reached.push_back(d >= 0);
    return reached;
  }
}

}  // namespace nestgrad
