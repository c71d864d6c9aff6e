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
// one stride are merged when the copy is made.
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
      if (in.source == 1 && in.target == 1)
        std::memcpy(to, from, static_cast<std::size_t>(in.size) * sizeof(U));
      else if (in.source == 0 && in.target == 1) std::fill_n(to, in.size, *from);
      else
        for (std::int64_t i = 0; i < in.size; ++i) to[i * in.target] = from[i * in.source];
      std::size_t d = 1;
      for (; d < dims_.size(); ++d) {
        from += dims_[d].source, to += dims_[d].target;
        if (++counter[d] < size(d)) break;
        from -= dims_[d].source * size(d), to -= dims_[d].target * size(d);
        counter[d] = 0;
      }
      if (d == dims_.size()) return;
    }
  }

  std::size_t element_;
  std::int64_t source_offset_, target_offset_;
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
