// Walks through arrays, as kernels take them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <initializer_list>

#include "engine/core/host_device.h"

namespace nestgrad::cuda {

constexpr int kMostAxes = 16;

// Divides numbers below 2^31 by a number that is known before, without a division: a GPU has none for integers (Granlund and
// Montgomery 1994, "Division by invariant integers using multiplication").
struct Divisor {
  std::uint32_t multiplier = 0;
  int shift = 0;

  Divisor() = default;  // by 1
  // By 2^31 and more every quotient is 0.
  explicit Divisor(std::int64_t by) {
    if (by <= 1) return;
    if (by >= std::int64_t{1} << 31) {
      shift = 31;
      return;
    }
    shift = std::bit_width(static_cast<std::uint32_t>(by - 1));
    const std::uint64_t power = std::uint64_t{1} << shift;
    multiplier = static_cast<std::uint32_t>((power - static_cast<std::uint64_t>(by)) *
                                                (std::uint64_t{1} << 32) / static_cast<std::uint64_t>(by) +
                                            1);
  }
  NESTGRAD_HOST_DEVICE std::uint32_t quotient(std::uint32_t n) const {
    return (static_cast<std::uint32_t>(static_cast<std::uint64_t>(n) * multiplier >> 32) + n) >> shift;
  }
};

// Row-major extents, outermost first, with the strides of an array walked through in that order.
struct Strided {
  int rank = 0;
  std::int64_t size[kMostAxes], stride[kMostAxes];
  Divisor by[kMostAxes];  // the sizes
  // Where element `index` of the row-major order lies.
  NESTGRAD_HOST_DEVICE std::int64_t at(std::int64_t index) const {
    if (rank == 0) return 0;
    if (index >> 31 != 0) return at_large(index);
    std::int64_t offset = 0;
    auto rest = static_cast<std::uint32_t>(index);
    for (int d = rank; d-- > 1;) {
      const std::uint32_t outer = by[d].quotient(rest);
      offset += static_cast<std::int64_t>(rest - outer * static_cast<std::uint32_t>(size[d])) * stride[d];
      rest = outer;
    }
    return offset + rest * stride[0];
  }
  std::int64_t count() const {
    std::int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= size[d];
    return n;
  }
  void set_size(int d, std::int64_t n) { size[d] = n, by[d] = Divisor(n); }
  void remove(int d) {
    for (--rank; d < rank; ++d) size[d] = size[d + 1], stride[d] = stride[d + 1], by[d] = by[d + 1];
  }

 private:
  NESTGRAD_HOST_DEVICE std::int64_t at_large(std::int64_t index) const {
    std::int64_t offset = 0;
    for (int d = rank; d-- > 0;) {
      const std::int64_t rest = index / size[d];
      offset += (index - rest * size[d]) * stride[d];
      index = rest;
    }
    return offset;
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
      walk.set_size(walk.rank - 1, walk.size[walk.rank - 1] * size), walk.stride[walk.rank - 1] = w.stride;
    } else {
      if (walk.rank == kMostAxes) return false;
      walk.set_size(walk.rank, size), walk.stride[walk.rank++] = w.stride;
    }
  }
  return true;
}

}  // namespace nestgrad::cuda
