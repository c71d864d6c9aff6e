// Sums and maxima over axes in an order fixed by the shape.
#pragma once

#include "cuda/device.cuh"
#include "cuda/reduction.h"

namespace nestgrad::cuda {

// Terms begin, begin + step, .. before end of an output, whose terms begin at `from`.
template <template <class> class R, class T>
__device__ R<T> reduce_terms(const Reduction& reduction, const T* from, std::int64_t begin, std::int64_t end,
                             std::int64_t step) {
  return reduce_at<R>([&](std::int64_t k) { return reduction.reduced.at(k); }, from, begin, end, step);
}

// One output by a whole warp; every lane has it.
template <template <class> class R, class T>
__device__ T reduce_by_warp(const Reduction& reduction, const T* x, std::int64_t output) {
  if (reduction.terms == 0) return T(0);
  const T* from = x + reduction.kept.at(output);
  return over_warp(reduce_terms<R>(reduction, from, threadIdx.x % kWarp, reduction.terms, kWarp)).value();
}

}  // namespace nestgrad::cuda
