// ClusterLayout: how a cluster's arrays are walked through, for those who write its text (cluster_source.h, cuda/scan_source.h).
// Axes that all arrays go along alike are one; the innermost is the row. Owns nothing; lives as long as the call.
#pragma once

#include <string>
#include <vector>

#include "engine/plan/cluster.h"

namespace nestgrad {

class ClusterLayout {
 public:
  explicit ClusterLayout(const ClusterCall& call);

  bool has_narrow() const { return has_narrow_; }  // does a value have one element for each row?
  std::int64_t row() const { return row_; }        // elements of a row, and how many there are
  std::int64_t rows() const { return rows_; }
  // What is done one after the other: rows, where a value has one element for each, else elements.
  std::int64_t count() const { return has_narrow_ ? rows_ : rows_ * row_; }

  // Walks: one for each input, by its number; that of wide outputs; that of narrow ones.
  std::size_t wide_walk() const { return call_.in.size(); }
  std::size_t narrow_walk() const { return call_.in.size() + 1; }
  // The element at which row r of an array begins, in terms of `r`.
  std::string row_of(std::size_t walk) const;
  // Does the array repeat along the row?
  bool is_one_a_row(std::size_t walk) const { return by_size_[walk][0] == 0; }
  // Do its elements lie as the cluster's are counted?
  bool is_whole(std::size_t walk) const;

 private:
  const ClusterCall& call_;
  bool has_narrow_ = false;
  std::vector<std::int64_t> sizes_;                 // joined axes, innermost first
  std::vector<std::vector<std::int64_t>> by_size_;  // by walk, then as sizes_: its strides
  std::int64_t row_ = 0, rows_ = 1;
};

}  // namespace nestgrad
