// The minimum cut of a directed graph, by blocking flows (Dinic, 1970).
#pragma once

#include <cstdint>
#include <vector>

namespace nestgrad {

class MinimumCut {
 public:
  static constexpr std::int64_t kNever = std::int64_t{1} << 60;  // the price of an edge that must not be cut

  explicit MinimumCut(int vertices) : edges_of_(static_cast<std::size_t>(vertices)) {}
  void add(int from, int to, std::int64_t price);
  // vertex -> is it on the side of `start`? The edges from that side to the other are the cheapest that part
  // start from end. To be asked once.
  std::vector<char> find(int start, int end);
  std::int64_t looks() const { return looks_; }  // at edges, so far

 private:
  struct Edge {
    int to;
    std::int64_t left;  // price that no path has used up; its reverse is the edge of the number ^ 1
  };
  // How many edges with price left lead from start to each vertex; -1: none do. As far as `end`.
  std::vector<int> distances(int start, int end);
  // Uses up shortest paths until each has an edge without price left.
  void block(int start, int end, const std::vector<int>& distance);

  std::vector<Edge> edges_;
  std::vector<std::vector<std::size_t>> edges_of_;
  std::int64_t looks_ = 0;
};

}  // namespace nestgrad
