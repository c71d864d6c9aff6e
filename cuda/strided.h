// Walks through arrays, as kernels take them. Internal to cuda/.
#pragma once

#include <cstdint>

#include "engine/random.h"  // NESTGRAD_HOST_DEVICE

namespace nestgrad::cuda {

constexpr int kMostAxes = 16;

// Row-major extents, outermost first, with the strides of an array walked through in that order.
struct Strided {
  int rank = 0;
  std::int64_t size[kMostAxes], stride[kMostAxes];
  // Where element `index` of the row-major order lies.
  NESTGRAD_HOST_DEVICE std::int64_t at(std::int64_t index) const {
    std::int64_t offset = 0;
    for (int d = rank; d-- > 0;) {
      const std::int64_t rest = index / size[d];
      offset += (index - rest * size[d]) * stride[d];
      index = rest;
    }
    return offset;
  }
};

}  // namespace nestgrad::cuda
