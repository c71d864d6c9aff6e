// TreeSum: adds up numbered values in a fixed binary tree, in which each node splits its leaves at the largest power of two
// below their number. The sum has the same bits however the leaves are shared out, as long as each part is a run of
// neighbours that comes in order:
//
//   TreeSum<float> here(5, add);  here.push({0, 1}, a);  here.push({1, 2}, b);  ..   // leaves 0 to 2 of 5
//   here.roots()    // {[0, 2), a + b}, {[2, 3), c}: what a process with these leaves passes on
//
// and pushing the roots of all parts, in order, leaves one root: ((a + b) + (c + d)) + e. At most 2 log2(leaves) + 1 values
// are held at a time.
#pragma once

#include <bit>
#include <functional>
#include <utility>
#include <vector>

#include "engine/processes/transport.h"

namespace nestgrad {

// Where the tree splits leaves [begin, end), of which there are two at least.
inline std::int64_t split_of(IndexRange r) {
  return r.begin + static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(r.size() - 1)));
}

// Is there a node of [a.begin, b.end) in the tree of so many leaves, whose children are a and b?
inline bool are_siblings(IndexRange a, IndexRange b, std::int64_t leaves) {
  IndexRange node{0, leaves};
  while (node.size() > 1) {
    const std::int64_t middle = split_of(node);
    if (node == IndexRange{a.begin, b.end}) return middle == a.end && middle == b.begin;
    if (b.end <= middle) node.end = middle;
    else if (a.begin >= middle) node.begin = middle;
    else return false;
  }
  return false;
}

template <class T>
class TreeSum {
 public:
  struct Node {
    IndexRange leaves;
    T value;
  };
  // add(a, b): a = a + b; b is given up.
  using Add = std::function<void(T& a, T& b)>;

  TreeSum(std::int64_t leaves, Add add) : leaves_(leaves), add_(std::move(add)) {}

  void push(IndexRange leaves, T value) {
    roots_.push_back({leaves, std::move(value)});
    while (roots_.size() > 1 &&
           are_siblings(roots_[roots_.size() - 2].leaves, roots_.back().leaves, leaves_)) {
      Node right = std::move(roots_.back());
      roots_.pop_back();
      Node& left = roots_.back();
      add_(left.value, right.value);
      left.leaves.end = right.leaves.end;
    }
  }

  std::vector<Node>& roots() { return roots_; }

 private:
  std::int64_t leaves_;
  Add add_;
  std::vector<Node> roots_;
};

// The leaves of the roots that a part leaves behind.
inline std::vector<IndexRange> roots_of(IndexRange part, std::int64_t leaves) {
  TreeSum<char> tree(leaves, [](char&, char&) {});
  for (std::int64_t i = part.begin; i < part.end; ++i) tree.push({i, i + 1}, 0);
  std::vector<IndexRange> out;
  for (const auto& root : tree.roots()) out.push_back(root.leaves);
  return out;
}

}  // namespace nestgrad
