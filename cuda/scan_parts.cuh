// What steps of scans are made of, by a whole block of threads: for the interpreter (cuda/scan_block.cuh), and for kernels that
// are written for one scan (cuda/scan_source.h), whose sizes the compiler knows. Both give the same bits.
#pragma once

#include "cuda/device.cuh"
#include "cuda/product_shape.h"
#include "cuda/scan_arguments.h"
#include "ops/numerics/number.h"

namespace nestgrad::cuda {

// A right operand [n, k] as [k, n], so that threads that lie side by side read side by side.
template <class T>
__device__ void copy_transposed(const T* b, T* to, int n, int k) {
  const int row = static_cast<int>(padded_row(n));
  for (int i = static_cast<int>(threadIdx.x); i < n * k; i += static_cast<int>(blockDim.x))
    to[i % k * row + i / k] = b[i];
}

// ---- with sizes that the compiler knows ----

// element(i) for i = 0 .. kCount, by all threads. How often a thread comes to it, the compiler knows.
template <int kCount, class Element>
__device__ void for_each_element(const Element& element) {
  constexpr int kThreads = static_cast<int>(kScanThreads), kTurns = (kCount + kThreads - 1) / kThreads;
  NESTGRAD_UNROLL
  for (int turn = 0; turn < kTurns; ++turn)
    if (const int i = static_cast<int>(threadIdx.x) + turn * kThreads; kCount % kThreads == 0 || i < kCount)
      element(i);
}

// A number that the first has of the kLanes lanes (a power of two) among which a row lies.
template <int kLanes, class T>
__device__ T first_lane(T x) {
  return __shfl_sync(kFullWarp, x, static_cast<int>(threadIdx.x % kWarp) / kLanes * kLanes);
}

// Of the kWarp / kBeside lanes of a row, each of which has what kBeside lanes of a warp would have: in the order of over_warp().
template <int kBeside, class R>
__device__ R over_lanes(R (&mine)[kBeside]) {
  unsigned step = kWarp / 2;
  for (int half = kBeside / 2; half > 0; half /= 2, step /= 2)
    for (int i = 0; i < half; ++i) mine[i].absorb(mine[i + half]);
  for (; step > 0; step /= 2) mine[0].absorb(mine[0].from_lane(step));
  return mine[0];
}

template <class T>
struct alignas(16) Four {
  T x[4];
};

// kWhole: they begin at a multiple of 16 bytes.
template <bool kWhole, class T>
__device__ Four<T> load_four(const T* from) {
  if constexpr (kWhole) return *reinterpret_cast<const Four<T>*>(from);
  else return {{from[0], from[1], from[2], from[3]}};
}
template <bool kWhole, class T>
__device__ void store_four(const Four<T>& x, T* to) {
  if constexpr (kWhole) *reinterpret_cast<Four<T>*>(to) = x;
  else
    for (int i = 0; i < 4; ++i) to[i] = x.x[i];
}

// B [N, K] as [K, N], as copy_transposed() does it: a thread loads several elements before it stores any.
template <class T, int N, int K>
__device__ void transpose(const T* b, T* to) {
  constexpr int kThreads = static_cast<int>(kScanThreads), kAll = N * K,
                kEach = (kAll + kThreads - 1) / kThreads, kAtOnce = kEach < 16 ? kEach : 16,
                kTurns = (kEach + kAtOnce - 1) / kAtOnce, kRow = static_cast<int>(padded_row(N));
  NESTGRAD_UNROLL_ONCE
  for (int turn = 0; turn < kTurns; ++turn) {
    const int begin = static_cast<int>(threadIdx.x) + turn * kThreads * kAtOnce;
    T x[kAtOnce];
    NESTGRAD_UNROLL_WHOLE
    for (int u = 0; u < kAtOnce; ++u)
      if (const int i = begin + u * kThreads; kAll % (kThreads * kAtOnce) == 0 || i < kAll) x[u] = b[i];
    NESTGRAD_UNROLL_WHOLE
    for (int u = 0; u < kAtOnce; ++u)
      if (const int i = begin + u * kThreads; kAll % (kThreads * kAtOnce) == 0 || i < kAll)
        to[i % K * kRow + i / K] = x[u];
  }
}

// What a product is, for the compiler: C [M, N] = A B, sums over K. A: element (row, k) at row * ARow + k * AColumn; B: (k, column) at
// k * BRow + column. AWhole, BWhole, CWhole: they, and their rows (columns of an A that is transposed), begin at multiples of 16 bytes.
template <int M_, int N_, int K_, int ARow_, int AColumn_, int BRow_, bool AWhole_, bool BWhole_,
          bool CWhole_>
struct ProductShape {
  static constexpr int M = M_, N = N_, K = K_, ARow = ARow_, AColumn = AColumn_, BRow = BRow_;
  static constexpr bool AWhole = AWhole_, BWhole = BWhole_, CWhole = CWhole_;
  static constexpr int kGroups = static_cast<int>(column_groups(N)),
                       kRows = static_cast<int>(rows_at_once(M, N, K)), kTiles = M / kRows * kGroups,
                       kParts = static_cast<int>(parts_of_sum(M, N, K)), kPart = K / kParts;
  static constexpr bool kLast = N % 4 != 0;  // is there a group of fewer than four columns?
};

// A tile of C: kRows rows from `top`, four columns from `left`; the sum over kPart k, from the first that a and b have.
template <class P, class T>
__device__ void sum_tile(const T* a, const T* b, int top, int left, T (&sum)[P::kRows][4]) {
  constexpr int kRows = P::kRows, kStep = P::kPart % 4 == 0 ? 4 : 1;
  const bool whole = !P::kLast || left + 4 <= P::N;
  const T* from_a = a + top * P::ARow;
  const T* from_b = b + left;
  NESTGRAD_UNROLL
  for (int k = 0; k < P::kPart; k += kStep) {
    T x[kRows][kStep];
    if constexpr (P::AColumn == 1 && kStep == 4) {
      for (int r = 0; r < kRows; ++r) {
        const Four<T> four = load_four<P::AWhole>(from_a + r * P::ARow + k);
        for (int s = 0; s < kStep; ++s) x[r][s] = four.x[s];
      }
    } else if constexpr (P::ARow == 1 && kRows % 4 == 0) {
      for (int s = 0; s < kStep; ++s)
        for (int r = 0; r < kRows; r += 4) {
          const Four<T> four = load_four<P::AWhole>(from_a + (k + s) * P::AColumn + r);
          for (int i = 0; i < 4; ++i) x[r + i][s] = four.x[i];
        }
    } else {
      for (int r = 0; r < kRows; ++r)
        for (int s = 0; s < kStep; ++s) x[r][s] = from_a[r * P::ARow + (k + s) * P::AColumn];
    }
    for (int s = 0; s < kStep; ++s) {
      Four<T> y;
      if (whole) y = load_four<P::BWhole>(from_b + (k + s) * P::BRow);
      else
        for (int i = 0; i < 4; ++i) y.x[i] = left + i < P::N ? from_b[(k + s) * P::BRow + i] : T(0);
      for (int r = 0; r < kRows; ++r)
        for (int i = 0; i < 4; ++i) sum[r][i] = fma(x[r][s], y.x[i], sum[r][i]);
    }
  }
}

template <class P, class T>
__device__ void store_tile(const T (&sum)[P::kRows][4], int top, int left, T* c) {
  for (int r = 0; r < P::kRows; ++r) {
    T* to = c + (top + r) * P::N + left;
    if (!P::kLast || left + 4 <= P::N)
      store_four<P::CWhole>(Four<T>{{sum[r][0], sum[r][1], sum[r][2], sum[r][3]}}, to);
    else
      for (int i = 0; i < 4 && left + i < P::N; ++i) to[i] = sum[r][i];
  }
}

// By all threads of the block. kSpread: each part of the sums by other threads, who put theirs into `scratch`, of parts_scratch()
// elements; else a thread takes one part after the other.
template <class P, bool kSpread, class T>
__device__ void product(const T* a, const T* b, T* c, T* scratch) {
  constexpr int kThreads = static_cast<int>(kScanThreads);
  const int thread = static_cast<int>(threadIdx.x);
  const auto step_a = [](int part) { return part * P::kPart * P::AColumn; };
  const auto step_b = [](int part) { return part * P::kPart * P::BRow; };
  if constexpr (kSpread && P::kParts > 1) {
    static_assert(P::kTiles * P::kParts <= kThreads);
    const int part = thread / P::kTiles, tile = thread % P::kTiles, top = tile / P::kGroups * P::kRows,
              left = tile % P::kGroups * 4;
    Four<T>* const others = reinterpret_cast<Four<T>*>(scratch) + tile;
    T sum[P::kRows][4] = {};
    if (part < P::kParts) {
      sum_tile<P>(a + step_a(part), b + step_b(part), top, left, sum);
      if (part > 0) {
        NESTGRAD_UNROLL_WHOLE
        for (int r = 0; r < P::kRows; ++r)
          others[((part - 1) * P::kRows + r) * P::kTiles] = {{sum[r][0], sum[r][1], sum[r][2], sum[r][3]}};
      }
    }
    __syncthreads();
    if (part > 0) return;
    for (int p = 1; p < P::kParts; ++p) {
      NESTGRAD_UNROLL_WHOLE
      for (int r = 0; r < P::kRows; ++r) {
        const Four<T> other = others[((p - 1) * P::kRows + r) * P::kTiles];
        for (int i = 0; i < 4; ++i) sum[r][i] += other.x[i];
      }
    }
    store_tile<P>(sum, top, left, c);
  } else {
    constexpr int kTurns = (P::kTiles + kThreads - 1) / kThreads;
    NESTGRAD_UNROLL_ONCE
    for (int turn = 0; turn < kTurns; ++turn) {
      const int tile = thread + turn * kThreads;
      if (P::kTiles % kThreads != 0 && tile >= P::kTiles) return;
      const int top = tile / P::kGroups * P::kRows, left = tile % P::kGroups * 4;
      T sum[P::kRows][4] = {};
      sum_tile<P>(a, b, top, left, sum);
      NESTGRAD_UNROLL_ONCE
      for (int p = 1; p < P::kParts; ++p) {
        T other[P::kRows][4] = {};
        sum_tile<P>(a + step_a(p), b + step_b(p), top, left, other);
        for (int r = 0; r < P::kRows; ++r)
          for (int i = 0; i < 4; ++i) sum[r][i] += other[r][i];
      }
      store_tile<P>(sum, top, left, c);
    }
  }
}

}  // namespace nestgrad::cuda
