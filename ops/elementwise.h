// The loop that every elementwise kernel runs: an inner run over contiguous (or repeated) elements inside
// outer dimensions that broadcasting left apart. Made once per call, at plan time.
#pragma once

#include <vector>

#include "engine/core/op.h"
#include "engine/core/threads.h"

namespace nestgrad {

struct BroadcastLoop {
  static constexpr std::size_t kMaxOuter = 16;
  std::int64_t inner = 0;
  std::vector<char> stretched;            // per operand: one element serves the whole inner run
  std::vector<std::int64_t> outer_sizes;  // innermost first
  std::vector<std::vector<std::int64_t>> outer_strides;  // [dimension][operand], in elements

  explicit BroadcastLoop(const OpCall& call);

  // The loop for each inner run; elements have `element` bytes.
  template <int N>
  void run(const std::byte* const* in, std::byte* out, std::size_t element, ElementLoop loop) const {
    if (inner == 0) return;
    const auto bytes = static_cast<std::int64_t>(element);
    if (outer_sizes.empty())
      return in_blocks(inner, kGrain, [&](std::int64_t begin, std::int64_t end) {
        const std::byte* p[N];
        for (int k = 0; k < N; ++k)
          p[k] = in[k] + (stretched[static_cast<std::size_t>(k)] ? 0 : begin * bytes);
        loop(p, out + begin * bytes, end - begin);
      });
    std::int64_t runs = 1;
    for (std::int64_t size : outer_sizes) runs *= size;
    in_blocks(runs, std::max<std::int64_t>(1, kGrain / inner), [&](std::int64_t begin, std::int64_t end) {
      some_runs<N>(in, out + begin * inner * bytes, bytes, loop, begin, end);
    });
  }

 private:
  template <int N>
  void some_runs(const std::byte* const* in, std::byte* out, std::int64_t bytes, ElementLoop loop,
                 std::int64_t begin, std::int64_t end) const {
    std::int64_t counter[kMaxOuter] = {}, rest = begin;
    const std::byte* p[N];
    std::copy_n(in, N, p);
    const auto stride = [&](std::size_t d, int k) {
      return outer_strides[d][static_cast<std::size_t>(k)] * bytes;
    };
    for (std::size_t d = 0; d < outer_sizes.size(); rest /= outer_sizes[d++]) {
      counter[d] = rest % outer_sizes[d];
      for (int k = 0; k < N; ++k) p[k] += stride(d, k) * counter[d];
    }
    for (std::int64_t run = begin;;) {
      loop(p, out, inner);
      if (++run == end) return;
      out += inner * bytes;
      std::size_t d = 0;
      for (; d < outer_sizes.size(); ++d) {
        for (int k = 0; k < N; ++k) p[k] += stride(d, k);
        if (++counter[d] < outer_sizes[d]) break;
        for (int k = 0; k < N; ++k) p[k] -= stride(d, k) * outer_sizes[d];
        counter[d] = 0;
      }
    }
  }
};

}  // namespace nestgrad
