// The loop that every elementwise kernel runs: an inner run over contiguous (or repeated) elements inside
// outer dimensions that broadcasting left apart. Made once per call, at plan time. Internal to ops/.
#pragma once

#include <vector>

#include "engine/op.h"

namespace nestgrad {

struct BroadcastLoop {
  static constexpr std::size_t kMaxOuter = 16;
  std::int64_t inner = 0;
  std::vector<char> stretched;            // per operand: one element serves the whole inner run
  std::vector<std::int64_t> outer_sizes;  // innermost first
  std::vector<std::vector<std::int64_t>> outer_strides;  // [dimension][operand], in elements

  explicit BroadcastLoop(const Call& call);

  // body(const T* const in[N], T* out, n) for each inner run.
  template <class T, int N, class Body>
  void run(const T* const* in, T* out, Body body) const {
    if (inner == 0) return;
    std::int64_t counter[kMaxOuter] = {};
    const T* p[N];
    std::copy_n(in, N, p);
    for (;;) {
      body(p, out, inner);
      out += inner;
      std::size_t d = 0;
      for (; d < outer_sizes.size(); ++d) {
        for (int k = 0; k < N; ++k) p[k] += outer_strides[d][static_cast<std::size_t>(k)];
        if (++counter[d] < outer_sizes[d]) break;
        for (int k = 0; k < N; ++k) p[k] -= outer_strides[d][static_cast<std::size_t>(k)] * outer_sizes[d];
        counter[d] = 0;
      }
      if (d == outer_sizes.size()) return;
    }
  }
};

}  // namespace nestgrad
