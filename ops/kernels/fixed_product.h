// Products whose extents the compiler knows: what compiled bodies of loops are made of (engine/plan/body_source.h).
// The bits are those of ops/kernels/gemm.cpp: an element is one sum over k in ascending order, and a vector against
// rows that lie along k is added up by lanes.
//
//   fixed_product<float, 16, 64, 64, false, true>(a, b, nullptr, c);  // C[16,64] = A[16,64] B[64,64]'
#pragma once

#include <cstddef>

#include "ops/kernels/gemm_along.h"
#include "ops/kernels/gemm_pack.h"

namespace nestgrad::inline NESTGRAD_ISA {

template <class T>
NESTGRAD_MEMBER_FN const T* elements(const std::byte* at) {
  return reinterpret_cast<const T*>(at);
}
template <class T>
NESTGRAD_MEMBER_FN T* elements(std::byte* at) {
  return reinterpret_cast<T*>(at);
}

// multiply() as a function of its own, which is how the kernels have it.
template <class T, int Rows, int Packets, bool Ragged>
__attribute__((noinline)) void multiply_apart(const Tiles<T>& t) {
  multiply<T, Rows, Packets, Ragged>(t);
}

// Where sums and what is multiplied take all of sixteen registers, a compiler that puts multiply() amid other code keeps
// some of the sums in memory, and a long product takes a quarter more time (g++ 12, 16 x 64 x 64).
template <class T, int Rows, int Packets, bool Ragged, Size K>
NESTGRAD_MEMBER_FN void multiply_known(const Tiles<T>& t) {
  if constexpr (kSums == 12 && Rows * Packets == kSums && K > 16) multiply_apart<T, Rows, Packets, Ragged>(t);
  else multiply<T, Rows, Packets, Ragged>(t);
}

// Columns Begin .. N of C = A B + D, in panels of at most Packets registers; B has its rows along n, and a row of A
// begins a_row after the one before, an element a_step.
template <class T, Size M, Size N, Size K, Size ARow, Size AStep, int Packets, Size Begin = 0>
NESTGRAD_MEMBER_FN void fixed_columns(const T* a, const T* b, const T* d, T* c) {
  constexpr Size size = Pack<T>::size;
  constexpr int packets = packets_of(Packets, (N - Begin + size - 1) / size, false);
  constexpr Size width = packets * size, panels = N - Begin < width ? 1 : (N - Begin) / width;
  constexpr bool ragged = N - Begin < width;
  constexpr Partition tiles = partition(M, max_rows(packets));
  for (Size j = Begin; j < Begin + panels * width; j += width) {
    Tiles<T> t;
    t.a_row = ARow, t.a_step = AStep;
    t.b = b + j, t.b_step = N;
    t.c_row = N, t.k = K, t.far = false;
    t.last = ragged ? N - Begin - (width - size) : size;
    t.a = a, t.c = c + j, t.plus = d ? d + j : nullptr;
    if constexpr (tiles.higher > 0) {
      constexpr Size rows = tiles.higher * (tiles.height + 1);
      t.a_tile = (tiles.height + 1) * ARow, t.count = tiles.higher;
      multiply_known<T, tiles.height + 1, packets, ragged, K>(t);
      t.a += rows * ARow, t.c += rows * N;
      if (d) t.plus += rows * N;
    }
    t.a_tile = tiles.height * ARow, t.count = tiles.count - tiles.higher;
    multiply_known<T, tiles.height, packets, ragged, K>(t);
  }
  if constexpr (Begin + panels * width < N)
    fixed_columns<T, M, N, K, ARow, AStep, packets, Begin + panels * width>(a, b, d, c);
}

// C[M,N] = op(A) B + D, where D may be null; B[K,N] may be what transposed() made.
template <class T, Size M, Size N, Size K, bool TA, bool Copied = false>
NESTGRAD_MEMBER_FN void product_with(const T* a, const T* b, const T* d, T* c) {
  constexpr Size a_row = TA && M > 1 ? 1 : K, a_step = TA && M > 1 ? M : 1;
  fixed_columns<T, M, N, K, a_row, a_step, first_packets(M, K, Copied, false)>(a, b, d, c);
}

// Rows row .. row + Rows of C[M,N] = op(A) B + D.
template <class T, Size M, Size N, Size K, bool TA, Size Rows>
__attribute__((noinline)) void product_rows(const T* a, const T* b, const T* d, T* c, Size row) {
  constexpr Size a_row = TA ? 1 : K, a_step = TA ? M : 1;
  fixed_columns<T, Rows, N, K, a_row, a_step, first_packets(M, K, false, false)>(a + row * a_row, b,
                                                                                 d + row * N, c + row * N);
}

// B' of B[N,K], for several products with it. (Copies write whole registers.)
template <class T, Size N, Size K>
struct Transposed {
  alignas(64) T at[K * N + Pack<T>::size];
  NESTGRAD_MEMBER_FN explicit Transposed(const T* b) { pack_transposed(b, K, N, K, at, N); }
};

// Is C = A B' + D cheaper as the transpose of B A'? Then A and C are transposed instead of B, by whole registers.
template <class T>
constexpr bool is_turned(Size m, Size n, Size k) {
  constexpr Size size = Pack<T>::size;
  return m % size == 0 && n % size == 0 && m * (k + n) < n * k;
}

// C[M,N] = op(A) B' + D as (B op(A)')' + D; D may be C. The sums are the same ones: each product is of the same two
// numbers, in the same order.
template <class T, Size M, Size N, Size K, bool TA>
NESTGRAD_MEMBER_FN void turned_product(const T* a, const T* b, const T* d, T* c) {
  constexpr Size size = Pack<T>::size;
  alignas(64) T turned[N * M];
  if constexpr (TA) product_with<T, N, M, K, false, true>(b, a, nullptr, turned);
  else product_with<T, N, M, K, false, true>(b, Transposed<T, M, K>(a).at, nullptr, turned);
  for (Size i = 0; i < M; i += size)
    for (Size j = 0; j < N; j += size) {
      Pack<T> square[size];
#pragma GCC unroll 16
      for (int r = 0; r < size; ++r) square[r] = Pack<T>::load(turned + (j + r) * M + i);
      transpose<T>(square);
#pragma GCC unroll 16
      for (int r = 0; r < size; ++r) {
        const Size at = (i + r) * N + j;
        (d ? Pack<T>::load(d + at) + square[r] : square[r]).store(c + at);
      }
    }
}

// C[M,N] = op(A) B' + D; TB is true.
template <class T, Size M, Size N, Size K, bool TA, bool TB>
__attribute__((noinline)) void fixed_product(const T* a, const Transposed<T, N, K>& b, const T* d, T* c) {
  product_with<T, M, N, K, TA, true>(a, b.at, d, c);
}

// C[M,N] = op(A) op(B) + D, all dense and row-major; op: as it is, or transposed. D may be C; it may be null. K is at
// most kGemmBlock.
template <class T, Size M, Size N, Size K, bool TA, bool TB>
__attribute__((noinline)) void fixed_product(const T* a, const T* b, const T* d, T* c) {
  if constexpr (M == 1 && (TB || N == 1)) {
    run_along(b, a, K, d, c, 0, N);
  } else if constexpr (N == 1 && !TA) {
    run_along(a, b, K, d, c, 0, M);
  } else if constexpr (N == 1) {  // C' = B' A': columns fill registers
    fixed_product<T, 1, M, K, false, false>(b, a, d, c);
  } else if constexpr (TB && is_turned<T>(M, N, K)) {
    turned_product<T, M, N, K, TA>(a, b, d, c);
  } else if constexpr (TB) {
    fixed_product<T, M, N, K, TA, TB>(a, Transposed<T, N, K>(b), d, c);
  } else {
    product_with<T, M, N, K, TA>(a, b, d, c);
  }
}

// Columns of walk() from j on: so many packets, the last of which may have only `last` columns.
template <class T, Size K, Size N, int Reads, int Steps, int Packets, bool Ragged>
NESTGRAD_MEMBER_FN void walk_columns(const T* w, T* to, const T* const* a, const T* const* d, T* const* c,
                                     const T* const* x, const T* const* y, Size j, Size last) {
  constexpr int size = Pack<T>::size;
  const Some<T> some(last);
  // Not what they are read from: for all that a compiler knows, that may be written.
  const T *left[Reads + 1], *column[Steps + 1];
#pragma GCC unroll 4
  for (int r = 0; r < Reads; ++r) left[r] = a[r];
#pragma GCC unroll 4
  for (int s = 0; s < Steps; ++s) column[s] = x[s];
  const auto load = [&](const T* from, int p) __attribute__((always_inline)) {
    return Ragged && p == Packets - 1 ? some.load(from + p * size) : Pack<T>::load(from + p * size);
  };
  const auto store = [&](Pack<T> value, T * at, int p) __attribute__((always_inline)) {
    if (Ragged && p == Packets - 1) some.store(value, at + p * size);
    else value.store(at + p * size);
  };
  Pack<T> sum[Reads + 1][Packets], row[Steps + 1][Packets];
#pragma GCC unroll 4
  for (int p = 0; p < Packets; ++p) {
#pragma GCC unroll 4
    for (int r = 0; r < Reads; ++r) sum[r][p] = Pack<T>(0);
#pragma GCC unroll 4
    for (int s = 0; s < Steps; ++s) row[s][p] = load(y[s] + j, p);
  }
  for (Size i = 0; i < K; ++i) {
#pragma GCC unroll 4
    for (int p = 0; p < Packets; ++p) {
      Pack<T> element = load(w + i * N + j, p);
#pragma GCC unroll 4
      for (int r = 0; r < Reads; ++r)
        sum[r][p] = fma(Pack<T>::load_repeated(left[r] + i), element, sum[r][p]);
#pragma GCC unroll 4
      for (int s = 0; s < Steps; ++s)
        element = element + fma(Pack<T>::load_repeated(column[s] + i), row[s][p], Pack<T>(0));
      if constexpr (Steps > 0) store(element, to + i * N + j, p);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < Reads; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < Packets; ++p) store(d[r] ? load(d[r] + j, p) + sum[r][p] : sum[r][p], c[r] + j, p);
}

// Products and steps of one matrix W[K,N] in one go: c[r] = a[r] W + d[r], where d[r] may be null; then
// to = W + x[0]' y[0] + x[1]' y[1] + .., which may be W. The bits are those of one after the other.
template <class T, Size K, Size N, int Reads, int Steps>
__attribute__((noinline)) void walk(const T* w, T* to, const T* const* a, const T* const* d, T* const* c,
                                    const T* const* x, const T* const* y) {
  // A read adds up in a register for each packet; enough of them hide how long an fma takes. A step stores as much as it
  // reads, which takes longer.
  constexpr int size = Pack<T>::size, packets = kSums >= 24 || (Steps == 0 && 4 * Reads <= kSums) ? 4 : 2;
  Size j = 0;
  for (; j + packets * size <= N; j += packets * size)
    walk_columns<T, K, N, Reads, Steps, packets, false>(w, to, a, d, c, x, y, j, size);
  for (; j + size <= N; j += size)
    walk_columns<T, K, N, Reads, Steps, 1, false>(w, to, a, d, c, x, y, j, size);
  if (j < N) walk_columns<T, K, N, Reads, Steps, 1, true>(w, to, a, d, c, x, y, j, N - j);
}

}  // namespace nestgrad::inline NESTGRAD_ISA
