// The loop that every elementwise kernel runs: an inner run over contiguous (or repeated) elements inside
// outer dimensions that broadcasting left apart. Made once per call, at plan time. Internal to ops/.
#pragma once

#include <vector>

#include "engine/op.h"
#include "engine/threads.h"

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
    if (outer_sizes.empty())
      return in_blocks(inner, kGrain, [&](std::int64_t begin, std::int64_t end) {
        const T* p[N];
        for (int k = 0; k < N; ++k) p[k] = in[k] + (stretched[static_cast<std::size_t>(k)] ? 0 : begin);
        body(p, out + begin, end - begin);
      });
    std::int64_t runs = 1;
    for (std::int64_t size : outer_sizes) runs *= size;
    in_blocks(runs, std::max<std::int64_t>(1, kGrain / inner),
              [&](std::int64_t begin, std::int64_t end) { some_runs<T, N>(in, out, body, begin, end); });
  }

 private:
  static constexpr std::int64_t kGrain = 1 << 15;  // elements that a thread does at once

  template <class T, int N, class Body>
  void some_runs(const T* const* in, T* out, Body body, std::int64_t begin, std::int64_t end) const {
    std::int64_t counter[kMaxOuter] = {}, rest = begin;
    const T* p[N];
    std::copy_n(in, N, p);
    for (std::size_t d = 0; d < outer_sizes.size(); rest /= outer_sizes[d++]) {
      counter[d] = rest % outer_sizes[d];
      for (int k = 0; k < N; ++k) p[k] += outer_strides[d][static_cast<std::size_t>(k)] * counter[d];
    }
    out += begin * inner;
    for (std::int64_t run = begin;;) {
      body(p, out, inner);
      if (++run == end) return;
      out += inner;
      std::size_t d = 0;
      for (; d < outer_sizes.size(); ++d) {
        for (int k = 0; k < N; ++k) p[k] += outer_strides[d][static_cast<std::size_t>(k)];
        if (++counter[d] < outer_sizes[d]) break;
        for (int k = 0; k < N; ++k) p[k] -= outer_strides[d][static_cast<std::size_t>(k)] * outer_sizes[d];
        counter[d] = 0;
      }
    }
  }
};

}  // namespace nestgrad
