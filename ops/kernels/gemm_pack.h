// Copies of parts of the operands into the order that tiles of a product read.
#pragma once

#include "ops/kernels/gemm_tile.h"
#include "ops/numerics/transpose.h"

namespace nestgrad::inline NESTGRAD_ISA {

// The panel to[p, j] = b[j, p] for p < k, j < width; zero from `columns` on. Whole packets are written: where
// the width is not a multiple of one, some elements behind the panel too.
template <class T>
__attribute__((noinline)) void pack_transposed(const T* b, Size stride, Size columns, Size k, T* to,
                                               Size width) {
  constexpr Size size = Pack<T>::size;
  // Where the last packet would write too much, it is written first: what it writes in the next row is then
  // overwritten, by that row or by the packets left of it.
  const Size packets = (width + size - 1) / size;
  for (Size packet = 0; packet < packets; ++packet) {
    const Size j = (width % size == 0 ? packet : packets - 1 - packet) * size;
    const T* from = b + j * stride;
    if (k < size) {
      for (Size p = 0; p < k; ++p)
        for (Size i = j; i < smaller(j + size, width); ++i)
          to[p * width + i] = i < columns ? b[i * stride + p] : T(0);
      continue;
    }
    for (Size next = 0; next < k; next += size) {
      const Size p = smaller(next, k - size);  // the last overlaps the one before
      Pack<T> square[size];
      if (columns - j >= size) {
#pragma GCC unroll 16
        for (int i = 0; i < size; ++i) square[i] = Pack<T>::load(from + i * stride + p);
      } else {
#pragma GCC unroll 16
        for (int i = 0; i < size; ++i)
          square[i] = i < columns - j ? Pack<T>::load(from + i * stride + p) : Pack<T>(0);
      }
      transpose<T>(square);
#pragma GCC unroll 16
      for (int i = 0; i < size; ++i) square[i].store(to + (p + i) * width + j);
    }
  }
}

// The panel to[p, j] = b[p, j] for p < k, j < width, a multiple of a packet; zero from `columns` on.
template <class T>
__attribute__((noinline)) void pack_rows(const T* b, Size stride, Size columns, Size k, T* to, Size width) {
  constexpr Size size = Pack<T>::size;
  const Size whole = smaller(columns, width) / size * size;
  for (Size p = 0; p < k; ++p, b += stride, to += width) {
    for (Size j = 0; j < whole; j += size) Pack<T>::load(b + j).store(to + j);
    if (whole < width)
      (whole < columns ? Some<T>(columns - whole).load_once(b + whole) : Pack<T>(0)).store(to + whole);
  }
}

// Panels of so many packets, one after the other. Rows of B are read as far as these panels go: they may lie
// in a page each, and what is read of a row at once is in few.
template <class T, int Packets>
__attribute__((noinline)) void pack_panels(const T* b, Size stride, Size panels, Size k, T* to) {
  constexpr Size size = Pack<T>::size, width = Packets * size;
  for (Size p = 0; p < k; ++p, b += stride, to += width)
    for (Size i = 0; i < panels; ++i) {
      const T* const from = b + i * width;
      T* const panel = to + i * k * width;
#pragma GCC unroll 16
      for (Size j = 0; j < width; j += size) {
        if (j * Size{sizeof(T)} % 64 == 0) __builtin_prefetch(from + j + 8 * stride);
        Pack<T>::load(from + j).store(panel + j);
      }
    }
}

// Columns of a tile of A', one after the other, kMaxRows apart. `end`: of A'.
template <class T>
__attribute__((noinline)) void pack_tile_transposed(const T* a, Size stride, Size rows, Size k, const T* end,
                                                    T* to) {
  for (Size p = 0; p < k; ++p, a += stride, to += kMaxRows)
    if (end - a >= kMaxRows) __builtin_memcpy(to, a, kMaxRows * sizeof(T));
    else
      for (Size i = 0; i < rows; ++i) to[i] = a[i];
}

}  // namespace nestgrad::inline NESTGRAD_ISA
