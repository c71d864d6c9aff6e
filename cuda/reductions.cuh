// Sums and maxima over axes, and running sums, in an order fixed by the shape.
#pragma once

#include <algorithm>

#include "cuda/device.cuh"
#include "engine/core/op.h"
#include "ops/attrs.h"

namespace nestgrad::cuda {

// Output i is made of the input elements kept.at(i) + reduced.at(0 .. terms).
struct Reduction {
  Strided kept, reduced;
  std::int64_t outputs = 1, terms = 1;
};

inline Reduction reduction_of(const OpCall& call) {
  Reduction out;
  const Shape &shape = call.in[0].shape, &axes = call.attrs.as<ReduceAttrs>().axes;
  const Shape strides = strides_of(shape);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const bool is_reduced = std::ranges::find(axes, static_cast<std::int64_t>(d)) != axes.end();
    (is_reduced ? out.terms : out.outputs) *= shape[d];
    if (!append(shape[d], {{is_reduced ? out.reduced : out.kept, strides[d]}}))
      call.shape_error("more than 16 axes that lie apart; reshape() some together");
  }
  return out;
}

// One output by a whole warp; every lane has it.
template <template <class> class R, class T>
__device__ T reduce_by_warp(const Reduction& reduction, const T* x, std::int64_t output) {
  const T* from = x + reduction.kept.at(output);
  R<T> total(reduction.terms == 0 ? T(0) : *from);
  for (std::int64_t k = threadIdx.x % kWarp; k < reduction.terms; k += kWarp)
    total.add(from[reduction.reduced.at(k)]);
  return over_warp(total).value();
}

// The running sums of one line of elements `stride` apart.
template <class T>
__device__ void sum_along(const T* x, T* y, std::int64_t line, std::int64_t extent, std::int64_t stride,
                          bool reverse) {
  const std::int64_t begin = line / stride * extent * stride + line % stride;
  Sum<T> sum;
  for (std::int64_t i = 0; i < extent; ++i) {
    const std::int64_t at = begin + (reverse ? extent - 1 - i : i) * stride;
    sum.add(x[at]);
    y[at] = sum.value();
  }
}

}  // namespace nestgrad::cuda
