// Walks through arrays, as kernels take them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "engine/core/host_device.h"

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
  std::int64_t count() const {
    std::int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= size[d];
    return n;
  }
};

// One more axis, inside of those before, of walks that go together: with their last axis as one where each
// goes through both in one stride. False: there would be more than kMostAxes.
struct Walked {
  Strided& walk;
  std::int64_t stride;
};
inline bool append(std::int64_t size, std::initializer_list<Walked> walks) {
  if (size == 1) return true;
  const bool one_stride = std::all_of(walks.begin(), walks.end(), [&](const Walked& w) {
    return w.walk.rank > 0 && w.walk.stride[w.walk.rank - 1] == w.stride * size;
  });
  for (const Walked& w : walks) {
    Strided& walk = w.walk;
    if (one_stride) {
      walk.size[walk.rank - 1] *= size, walk.stride[walk.rank - 1] = w.stride;
    } else {
      if (walk.rank == kMostAxes) return false;
      walk.size[walk.rank] = size, walk.stride[walk.rank++] = w.stride;
    }
  }
  return true;
}

}  // namespace nestgrad::cuda
