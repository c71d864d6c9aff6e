// The cheapest way to have values where they are read again: each is kept from where it was made, or computed from
// others that can be had. Passes that compute values again put the question to a MinimumCut in this way.
#pragma once

#include <optional>

#include "engine/core/index.h"
#include "engine/plan/cut.h"
#include "engine/plan/price.h"

namespace nestgrad {

// Values are numbered from 0. One that has no price, neither of keeping nor of computing, is there anyway.
class ValueCut {
 public:
  explicit ValueCut(std::size_t values) : cut_(2 + 2 * static_cast<int>(values)), values_(values) {}

  void want(NodeId v) { cut_.add(out_of(v), kEnd, MinimumCut::kNever); }
  void keep(NodeId v, Bytes price) { cut_.add(in_of(v), out_of(v), price); }
  // nullopt: it cannot be computed.
  void compute(NodeId v, std::optional<Bytes> price) {
    cut_.add(kStart, in_of(v), price.value_or(MinimumCut::kNever));
  }
  // To compute v takes this value.
  void need(NodeId v, NodeId input) { cut_.add(out_of(input), in_of(v), MinimumCut::kNever); }

  // By value: is it computed (or there anyway), and not kept? To be asked once.
  std::vector<char> computed() {
    const std::vector<char> before = cut_.find(kStart, kEnd);
    std::vector<char> out(values_);
    for (std::size_t v = 0; v < values_; ++v) out[v] = !before[uz(in_of(static_cast<NodeId>(v)))];
    return out;
  }

 private:
  // A value comes in, computed, and goes out, kept or computed.
  static constexpr int kStart = 0, kEnd = 1;
  static int in_of(NodeId v) { return 2 + 2 * v; }
  static int out_of(NodeId v) { return 3 + 2 * v; }

  MinimumCut cut_;
  std::size_t values_;
};

}  // namespace nestgrad
