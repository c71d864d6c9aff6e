#include "engine/plan/arena.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <utility>

namespace nestgrad {

namespace {

std::size_t padded(const Lifetime& buffer) {
  return (buffer.bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

// Indices of the buffers that have bytes, sorted by what `key` gives for one.
template <class Compare, class Key>
std::vector<std::size_t> in_order(const std::vector<Lifetime>& buffers, Compare compare, Key key) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < buffers.size(); ++i)
    if (buffers[i].bytes > 0) order.push_back(i);
  std::ranges::stable_sort(order, compare, [&](std::size_t i) { return key(buffers[i]); });
  return order;
}

ArenaLayout lay_out_by_size(const std::vector<Lifetime>& buffers) {
  ArenaLayout layout{.offsets = std::vector<std::size_t>(buffers.size(), 0)};
  std::vector<std::size_t> placed;  // by offset
  for (std::size_t i : in_order(buffers, std::greater<>{}, padded)) {
    const std::size_t size = padded(buffers[i]);
    std::size_t best = 0, best_gap = std::numeric_limits<std::size_t>::max(), end = 0;
    bool found = false;
    for (std::size_t j : placed) {
      if (buffers[j].last < buffers[i].first || buffers[i].last < buffers[j].first) continue;
      const std::size_t start = layout.offsets[j];
      if (start >= end + size && start - end < best_gap) best = end, best_gap = start - end, found = true;
      end = std::max(end, start + padded(buffers[j]));
    }
    layout.offsets[i] = found ? best : end;
    layout.bytes = std::max(layout.bytes, layout.offsets[i] + size);
    placed.insert(std::ranges::upper_bound(placed, layout.offsets[i], {},
                                           [&](std::size_t j) { return layout.offsets[j]; }),
                  i);
  }
  return layout;
}

// The stretches of an arena that no buffer has at a time; neighbours are one stretch.
class Gaps {
 public:
  // The offset of `size` bytes that are free: of the tightest gap, or at the end of the arena, which grows.
  std::size_t take(std::size_t size) {
    auto gap = by_size_.lower_bound({size, 0});
    if (gap == by_size_.end()) {
      // The last gap may reach the end: then the arena grows by what is missing only.
      const auto last = by_offset_.empty() ? by_offset_.end() : std::prev(by_offset_.end());
      const bool reaches = last != by_offset_.end() && last->first + last->second == end_;
      const std::size_t offset = reaches ? last->first : end_;
      if (reaches) erase(last);
      end_ = offset + size;
      return offset;
    }
    const auto [room, offset] = *gap;
    erase(by_offset_.find(offset));
    if (room > size) insert(offset + size, room - size);
    return offset;
  }

  void give_back(std::size_t offset, std::size_t size) {
    auto next = by_offset_.lower_bound(offset);
    if (next != by_offset_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        offset = before->first, size += before->second;
        erase(before);
      }
    }
    if (next != by_offset_.end() && offset + size == next->first) {
      size += next->second;
      erase(next);
    }
    insert(offset, size);
  }

  std::size_t end() const { return end_; }

 private:
  void insert(std::size_t offset, std::size_t size) {
    by_offset_.emplace(offset, size);
    by_size_.emplace(size, offset);
  }
  void erase(std::map<std::size_t, std::size_t>::iterator gap) {
    by_size_.erase({gap->second, gap->first});
    by_offset_.erase(gap);
  }

  std::map<std::size_t, std::size_t> by_offset_;           // -> size
  std::set<std::pair<std::size_t, std::size_t>> by_size_;  // size, offset
  std::size_t end_ = 0;
};

ArenaLayout lay_out_by_time(const std::vector<Lifetime>& buffers) {
  ArenaLayout layout{.offsets = std::vector<std::size_t>(buffers.size(), 0)};
  const auto ends = in_order(buffers, std::less<>{}, [](const Lifetime& b) { return b.last; });
  const auto begins = in_order(buffers, std::less<>{}, [](const Lifetime& b) {
    return std::pair(b.first,
                     std::numeric_limits<std::size_t>::max() - b.bytes);  // of equals, the largest first
  });
  Gaps gaps;
  auto ended = ends.begin();
  for (std::size_t i : begins) {
    for (; buffers[*ended].last < buffers[i].first; ++ended)
      gaps.give_back(layout.offsets[*ended], padded(buffers[*ended]));
    layout.offsets[i] = gaps.take(padded(buffers[i]));
  }
  layout.bytes = gaps.end();
  return layout;
}

}  // namespace

ArenaLayout lay_out(const std::vector<Lifetime>& buffers) {
  return buffers.size() <= kMostBySize ? lay_out_by_size(buffers) : lay_out_by_time(buffers);
}

}  // namespace nestgrad
