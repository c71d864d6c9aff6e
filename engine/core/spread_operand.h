// An operand that is spread over a larger shape, as broadcasting has it: its elements, block by block of that shape, in memory.
//
//   const SpreadOperand row({DType::f32, {3}}, {DType::f32, {100, 3}});
//   row.expand(x, 0, 30, out);   // x[0] x[1] x[2] x[0] x[1] .., ten times
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/core/array.h"
#include "engine/core/index.h"

namespace nestgrad {

// Runs of `run` elements, contiguous or all the same.
class SpreadOperand {
 public:
  static constexpr std::size_t kMostAxes = 16;  // of the larger shape

  SpreadOperand(const Spec& in, const Spec& out) {
    const Shape strides = strides_of(in.shape);
    std::vector<Dim> all;
    for (int d = out.rank(); d-- > 0;) {
      const std::int64_t size = out.shape[uz(d)];
      if (size == 1) continue;
      const int axis = d - (out.rank() - in.rank());
      const std::int64_t stride = axis < 0 || in.shape[uz(axis)] == 1 ? 0 : strides[uz(axis)];
      if (!all.empty() && stride == all.back().stride * all.back().size) all.back().size *= size;
      else all.push_back({size, stride});
    }
    if (all.empty()) return;
    run_ = all[0].size, repeats_ = all[0].stride == 0;
    dims_.assign(all.begin() + 1, all.end());
  }

  // Runs of so many elements of the larger shape: contiguous in the operand, or one element repeated.
  std::int64_t run() const { return run_; }
  bool repeats() const { return repeats_; }
  // Where the operand has element `index` of the larger shape.
  std::int64_t place(std::int64_t index) const {
    std::int64_t at = repeats_ ? 0 : index % run_;
    index /= run_;
    for (const Dim& d : dims_) at += index % d.size * d.stride, index /= d.size;
    return at;
  }

  // Elements begin..end of the larger shape, begin < end.
  template <class T>
  void expand(const T* in, std::int64_t begin, std::int64_t end, T* out) const {
    std::int64_t counter[kMostAxes], index = begin / run_, within = begin % run_;
    for (std::size_t d = 0; d < dims_.size(); index /= dims_[d++].size) {
      counter[d] = index % dims_[d].size;
      in += counter[d] * dims_[d].stride;
    }
    for (std::int64_t at = begin;;) {
      std::int64_t runs = 1, n = std::min(run_ - within, end - at);
      if (n == run_ && n <= kShort && !dims_.empty()) {
        runs = std::min(dims_[0].size - counter[0], (end - at) / n);
        expand_short(in, runs, out);
        n *= runs;
      } else if (repeats_) {
        std::fill_n(out, n, *in);
      } else {
        std::copy_n(in + within, n, out);
      }
      if ((at += n) == end) return;
      out += n, within = 0;
      for (std::size_t d = 0; d < dims_.size(); ++d) {
        in += dims_[d].stride * (d == 0 ? runs : 1);
        if ((counter[d] += d == 0 ? runs : 1) < dims_[d].size) break;
        in -= dims_[d].stride * dims_[d].size, counter[d] = 0;
      }
    }
  }

 private:
  static constexpr std::int64_t kShort = 16;  // a call for each run takes longer than its elements

  struct Dim {
    std::int64_t size, stride;  // of runs, innermost first; stride in elements of the operand
  };

  // So many whole runs along the first of the dimensions.
  template <class T>
  void expand_short(const T* in, std::int64_t runs, T* out) const {
    const std::int64_t stride = dims_[0].stride, all = runs * run_;
    if (stride == 0 && !repeats_) {  // one run again and again: what is there is copied behind itself
      std::copy_n(in, run_, out);
      for (std::int64_t done = run_; done < all; done += std::min(done, all - done))
        std::memcpy(out + done, out, uz(std::min(done, all - done)) * sizeof(T));
      return;
    }
    switch (repeats_ ? run_ : 0) {
      case 2:
        return repeat<2>(in, stride, runs, out);
      case 3:
        return repeat<3>(in, stride, runs, out);
      case 4:
        return repeat<4>(in, stride, runs, out);
      case 8:
        return repeat<8>(in, stride, runs, out);
      case 16:
        return repeat<16>(in, stride, runs, out);
      default:
        for (std::int64_t r = 0; r < runs; ++r)
          for (std::int64_t i = 0; i < run_; ++i) out[r * run_ + i] = in[r * stride + (repeats_ ? 0 : i)];
    }
  }
  template <int n, class T>
  static void repeat(const T* in, std::int64_t stride, std::int64_t runs, T* out) {
    for (std::int64_t r = 0; r < runs; ++r)
      for (int i = 0; i < n; ++i) out[r * n + i] = in[r * stride];
  }

  std::int64_t run_ = 1;
  bool repeats_ = false;
  std::vector<Dim> dims_;
};

}  // namespace nestgrad
