// The transpose of a square of numbers that lie in registers, for copies of matrices into an order that
// kernels read.
#pragma once

#include <utility>

#include "ops/numerics/pack.h"

namespace nestgrad::inline NESTGRAD_ISA {

namespace transpose_detail {

// x and y side by side, seen as units of `Unit` lanes: what Pick::at(i) says is unit i of the result.
template <int Unit, class Pick, class Raw, int... I>
NESTGRAD_MEMBER_FN Raw shuffled(Raw x, Raw y, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(x, y, (Pick::at(I / Unit) * Unit + I % Unit)...);
}
template <int Unit, class Pick, class Raw>
NESTGRAD_MEMBER_FN Raw shuffled(Raw x, Raw y) {
  constexpr int lanes = sizeof(Raw) / sizeof(x[0]);
  return shuffled<Unit, Pick>(x, y, std::make_integer_sequence<int, lanes>{});
}

// The lower (or upper) halves of groups of `Group` units, a unit of x and one of y in turn. Groups of 16
// bytes make one instruction of it.
template <int Units, int Group, bool Upper>
struct Interleave {
  static constexpr int at(int i) {
    const int in_group = i % Group;
    return i - in_group + in_group / 2 + (Upper ? Group / 2 : 0) + (in_group % 2 ? Units : 0);
  }
};
// The lower (or upper) half of x, then that of y.
template <int Units, bool Upper>
struct Halves {
  static constexpr int at(int i) {
    return i % (Units / 2) + (Upper ? Units / 2 : 0) + (i >= Units / 2 ? Units : 0);
  }
};
// The even (or odd) units of x, then those of y.
template <int Units, bool Odd>
struct Alternate {
  static constexpr int at(int i) {
    return 2 * (i % (Units / 2)) + (Odd ? 1 : 0) + (i >= Units / 2 ? Units : 0);
  }
};

}  // namespace transpose_detail

// Lane i of row j becomes lane j of row i.
template <class T>
NESTGRAD_MEMBER_FN void transpose(Pack<T> (&row)[Pack<T>::size]) {
  using namespace transpose_detail;
  using Raw = typename Pack<T>::Raw;
  constexpr int size = Pack<T>::size, lane = 16 / sizeof(T), blocks = size / lane;
  // Squares of 16 bytes by 16 bytes, those of all parts of a register at once.
#pragma GCC unroll 16
  for (int i = 0; i < size; i += lane) {
    if constexpr (lane == 2) {
      const Raw x = row[i].raw, y = row[i + 1].raw;
      row[i].raw = shuffled<1, Interleave<size, 2, false>>(x, y);
      row[i + 1].raw = shuffled<1, Interleave<size, 2, true>>(x, y);
    } else {
      const Raw x0 = row[i].raw, x1 = row[i + 1].raw, x2 = row[i + 2].raw, x3 = row[i + 3].raw;
      const Raw low0 = shuffled<1, Interleave<size, 4, false>>(x0, x1);
      const Raw high0 = shuffled<1, Interleave<size, 4, true>>(x0, x1);
      const Raw low2 = shuffled<1, Interleave<size, 4, false>>(x2, x3);
      const Raw high2 = shuffled<1, Interleave<size, 4, true>>(x2, x3);
      row[i].raw = shuffled<2, Interleave<size / 2, 2, false>>(low0, low2);
      row[i + 1].raw = shuffled<2, Interleave<size / 2, 2, true>>(low0, low2);
      row[i + 2].raw = shuffled<2, Interleave<size / 2, 2, false>>(high0, high2);
      row[i + 3].raw = shuffled<2, Interleave<size / 2, 2, true>>(high0, high2);
    }
  }
  // Then the squares among themselves.
#pragma GCC unroll 16
  for (int i = 0; i < lane; ++i) {
    if constexpr (blocks == 2) {
      const Raw x = row[i].raw, y = row[i + lane].raw;
      row[i].raw = shuffled<lane, Halves<2, false>>(x, y);
      row[i + lane].raw = shuffled<lane, Halves<2, true>>(x, y);
    } else if constexpr (blocks == 4) {
      const Raw x0 = row[i].raw, x1 = row[i + lane].raw, x2 = row[i + 2 * lane].raw,
                x3 = row[i + 3 * lane].raw;
      const Raw low0 = shuffled<lane, Halves<4, false>>(x0, x1),
                high0 = shuffled<lane, Halves<4, true>>(x0, x1);
      const Raw low2 = shuffled<lane, Halves<4, false>>(x2, x3),
                high2 = shuffled<lane, Halves<4, true>>(x2, x3);
      row[i].raw = shuffled<lane, Alternate<4, false>>(low0, low2);
      row[i + lane].raw = shuffled<lane, Alternate<4, true>>(low0, low2);
      row[i + 2 * lane].raw = shuffled<lane, Alternate<4, false>>(high0, high2);
      row[i + 3 * lane].raw = shuffled<lane, Alternate<4, true>>(high0, high2);
    }
  }
}

}  // namespace nestgrad::inline NESTGRAD_ISA
