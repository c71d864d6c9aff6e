// Moving elements: one routine for every op that only rearranges.
#pragma once

#include <algorithm>
#include <cstring>

#include "engine/core/index.h"
#include "engine/core/op.h"
#include "engine/core/threads.h"

namespace nestgrad {

// A walk over `shape` that reads source[source_offset + i . source_strides] and writes
// target[target_offset + i . target_strides]; strides in elements. Dimensions that both sides walk through in
// one stride are merged when the copy is made. Where the innermost dimension of the target is not that of the source, as in a
// transpose, both go in tiles, so that each line of memory is read and written once.
class StridedCopy {
 public:
  StridedCopy(const Shape& shape, const Shape& source_strides, const Shape& target_strides,
              std::size_t element, std::int64_t source_offset = 0, std::int64_t target_offset = 0)
      : element_(element), source_offset_(source_offset), target_offset_(target_offset) {
    for (std::size_t d = shape.size(); d-- > 0;) {
      if (shape[d] == 0) empty_ = true;
      if (shape[d] == 1) continue;
      if (!dims_.empty() && source_strides[d] == dims_.back().source * dims_.back().size &&
          target_strides[d] == dims_.back().target * dims_.back().size)
        dims_.back().size *= shape[d];
      else dims_.push_back({shape[d], source_strides[d], target_strides[d]});
    }
    if (dims_.empty()) dims_.push_back({1, 1, 1});
    if (dims_[0].source > 1)
      for (std::size_t d = 1; d < dims_.size() && across_ == 0; ++d)
        if (dims_[d].source == 1 && pays_in_tiles(dims_[0].size, dims_[d].size)) across_ = d;
    if (dims_.size() > kMaxDims)
      throw ShapeError(
          "[copy] more than 16 axes that are not walked through in one stride; reshape() some together");
  }

  void operator()(const std::byte* source, std::byte* target) const {
    if (empty_) return;
    std::int64_t inside = 1;  // elements of one step of the outermost dimension
    for (std::size_t d = 0; d + 1 < dims_.size(); ++d) inside *= dims_[d].size;
    in_blocks(dims_.back().size, std::max<std::int64_t>(1, kGrain / inside),
              [&](std::int64_t begin, std::int64_t end) {
                if (element_ == 8) run<std::uint64_t>(source, target, begin, end);
                else run<std::uint32_t>(source, target, begin, end);
              });
  }

 private:
  static constexpr std::size_t kMaxDims = 16;
  struct Dim {
    std::int64_t size, source, target;
  };

  // Some lines of the source, read side by side, stay in the cache as well; and of few elements there is nothing to gain.
  static bool pays_in_tiles(std::int64_t in, std::int64_t across) {
    return (in < 8 || in > 16) && in * across >= 256;
  }

  // The part begin..end of the outermost dimension.
  template <class U>
  void run(const std::byte* source, std::byte* target, std::int64_t begin, std::int64_t end) const {
    const std::size_t outermost = dims_.size() - 1;
    const U* from = reinterpret_cast<const U*>(source) + source_offset_ + begin * dims_[outermost].source;
    U* to = reinterpret_cast<U*>(target) + target_offset_ + begin * dims_[outermost].target;
    const auto size = [&](std::size_t d) { return d == outermost ? end - begin : dims_[d].size; };
    Dim in = dims_[0];
    in.size = size(0);
    std::int64_t counter[kMaxDims] = {};
    for (;;) {
      if (across_ > 0) tiles(from, to, in, {size(across_), dims_[across_].source, dims_[across_].target});
      else if (in.source == 1 && in.target == 1)
        std::memcpy(to, from, static_cast<std::size_t>(in.size) * sizeof(U));
      else if (in.source == 0 && in.target == 1) std::fill_n(to, in.size, *from);
      else
        for (std::int64_t i = 0; i < in.size; ++i) to[i * in.target] = from[i * in.source];
      std::size_t d = 1;
      for (; d < dims_.size(); ++d) {
        if (d == across_) continue;
        from += dims_[d].source, to += dims_[d].target;
        if (++counter[d] < size(d)) break;
        from -= dims_[d].source * size(d), to -= dims_[d].target * size(d);
        counter[d] = 0;
      }
      if (d == dims_.size()) return;
    }
  }

  // All of these two dimensions. A short one is walked through as a whole, along as much of the other as a cache holds.
  template <class U>
  static void tiles(const U* from, U* to, const Dim& in, const Dim& across) {
    constexpr std::int64_t kTile = 16, kShort = 8, kLong = 1024;
    const bool short_in = in.size < kShort, short_across = across.size < kShort;
    const std::int64_t step_in = short_across ? kLong : kTile, step_across = short_in ? kLong : kTile;
    const auto move = [&](std::int64_t i, std::int64_t j) {
      to[i * in.target + j * across.target] = from[i * in.source + j * across.source];
    };
    for (std::int64_t j0 = 0; j0 < across.size; j0 += step_across)
      for (std::int64_t i0 = 0; i0 < in.size; i0 += step_in) {
        const std::int64_t i1 = std::min(in.size, i0 + step_in), j1 = std::min(across.size, j0 + step_across);
        if (short_in) {
          for (std::int64_t i = i0; i < i1; ++i)
            for (std::int64_t j = j0; j < j1; ++j) move(i, j);
        } else if (i1 - i0 == kTile && j1 - j0 == kTile) {
          for (int j = 0; j < kTile; ++j)
            for (int i = 0; i < kTile; ++i) move(i0 + i, j0 + j);
        } else {
          for (std::int64_t j = j0; j < j1; ++j)
            for (std::int64_t i = i0; i < i1; ++i) move(i, j);
        }
      }
  }

  std::size_t element_;
  std::int64_t source_offset_, target_offset_;
  std::size_t across_ = 0;  // the dimension that the source has innermost, where it is not the first; 0: none
  std::vector<Dim> dims_;  // innermost first
  bool empty_ = false;
};

// Of operands that are matrices in a batch: the leading axes of [.., rows, columns].
inline Shape batch_of(const Shape& matrices) { return {matrices.begin(), matrices.end() - 2}; }
// Where the matrix of an operand begins for each member of the batch, in elements; axes of one are repeated.
//   matrix_offsets({2, 3}, {3, 4, 5})    // 0 20 40 0 20 40
inline std::vector<std::int64_t> matrix_offsets(const Shape& batch, const Shape& matrices) {
  const Shape strides = strides_of(matrices);
  const std::size_t skip = batch.size() + 2 - matrices.size();
  std::vector<std::int64_t> offsets(uz(numel(batch)), 0);
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    auto rest = static_cast<std::int64_t>(i);
    for (std::size_t d = batch.size(); d-- > skip; rest /= batch[d])
      if (matrices[d - skip] != 1) offsets[i] += rest % batch[d] * strides[d - skip];
  }
  return offsets;
}

// The kernel of an op with Op::view.
inline OpKernel copy_view(const OpCall& call) {
  const OpView view = call.op.view(call);
  return
      [copy = StridedCopy(call.out.shape, view.strides, strides_of(call.out.shape), size_of(call.out.dtype),
                          view.offset)](const std::byte* const* in, std::byte* out) { copy(in[0], out); };
}

// The kernel of an op whose output is the bytes of its input, and what it costs as an alias.
inline OpKernel copy_bytes(const OpCall& call) {
  return [bytes = call.out.bytes()](const std::byte* const* in, std::byte* out) {
    std::memcpy(out, in[0], bytes);
  };
}
inline OpCost no_cost(const OpCall&) { return {}; }

inline OpCost copy_cost(const OpCall& call) {
  return {0, static_cast<double>(call.in[0].bytes() + call.out.bytes())};
}
inline bool always_linear(const OpCall&, int) { return true; }

}  // namespace nestgrad
