// What steps of scans are made of, by a whole block of threads: for the interpreter (cuda/scan_block.cuh), and for kernels that
// are written for one scan (cuda/scan_source.h), whose sizes the compiler knows. Both give the same bits.
#pragma once

#include "cuda/device.cuh"
#include "cuda/scan_arguments.h"
#include "cuda/transposed.h"
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

// element(i) for i = 0 .. kCount.
template <int kCount, class Element>
__device__ void for_each_element(const Element& element) {
  constexpr int kThreads = static_cast<int>(kScanThreads);
  NESTGRAD_UNROLL
  for (int i = static_cast<int>(threadIdx.x); i < kCount; i += kThreads) element(i);
}

// A number that lane 0 has.
template <class T>
__device__ T first_lane(T x) {
  return __shfl_sync(kFullWarp, x, 0);
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

// Rows of C that a thread takes at once: as many as leave a warp or two. What bounds a product is how often its threads read
// shared memory: a warp takes four turns to read what it multiplies with one row or with eight.
NESTGRAD_HOST_DEVICE constexpr int rows_at_once(int m, int groups) {
  for (int rows = 8; rows > 1; rows /= 2)
    if (m % rows == 0 && m / rows * groups >= static_cast<int>(kScanThreads) / 4) return rows;
  return 1;
}

// B [N, K] as [K, N], as copy_transposed() does it: a thread loads several elements before it stores any.
template <class T, int N, int K>
__device__ void transpose(const T* b, T* to) {
  constexpr int kThreads = static_cast<int>(kScanThreads), kAll = N * K,
                kEach = (kAll + kThreads - 1) / kThreads, kAtOnce = kEach < 16 ? kEach : 16,
                kRow = static_cast<int>(padded_row(N));
  for (int begin = static_cast<int>(threadIdx.x); begin < kAll; begin += kThreads * kAtOnce) {
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

// C [M, N] = A B in order of k. A: element (row, k) at row * ARow + k * AColumn; B: (k, column) at k * BRow + column.
// AWhole, BWhole, CWhole: they, and their rows (columns of an A that is transposed), begin at multiples of 16 bytes.
template <class T, int M, int N, int K, int ARow, int AColumn, int BRow, bool AWhole, bool BWhole,
          bool CWhole>
__device__ void product(const T* a, const T* b, T* c) {
  constexpr int kGroups = (N + 3) / 4, kRows = rows_at_once(M, kGroups), kTiles = M / kRows * kGroups;
  constexpr int kStep = K % 4 == 0 ? 4 : 1;
  constexpr bool kLast = N % 4 != 0;  // is there a group of fewer than four columns?
  for (int tile = static_cast<int>(threadIdx.x); tile < kTiles; tile += static_cast<int>(kScanThreads)) {
    const int top = tile / kGroups * kRows, left = tile % kGroups * 4;
    const bool whole = !kLast || left + 4 <= N;
    T sum[kRows][4] = {};
    const T* from_a = a + top * ARow;
    const T* from_b = b + left;
    NESTGRAD_UNROLL
    for (int k = 0; k < K; k += kStep) {
      T x[kRows][kStep];
      if constexpr (AColumn == 1 && kStep == 4) {
        for (int r = 0; r < kRows; ++r) {
          const Four<T> four = load_four<AWhole>(from_a + r * ARow + k);
          for (int s = 0; s < kStep; ++s) x[r][s] = four.x[s];
        }
      } else if constexpr (ARow == 1 && kRows % 4 == 0) {
        for (int s = 0; s < kStep; ++s)
          for (int r = 0; r < kRows; r += 4) {
            const Four<T> four = load_four<AWhole>(from_a + (k + s) * AColumn + r);
            for (int i = 0; i < 4; ++i) x[r + i][s] = four.x[i];
          }
      } else {
        for (int r = 0; r < kRows; ++r)
          for (int s = 0; s < kStep; ++s) x[r][s] = from_a[r * ARow + (k + s) * AColumn];
      }
      for (int s = 0; s < kStep; ++s) {
        Four<T> y;
        if (whole) y = load_four<BWhole>(from_b + (k + s) * BRow);
        else
          for (int i = 0; i < 4; ++i) y.x[i] = left + i < N ? from_b[(k + s) * BRow + i] : T(0);
        for (int r = 0; r < kRows; ++r)
          for (int i = 0; i < 4; ++i) sum[r][i] = fma(x[r][s], y.x[i], sum[r][i]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      T* to = c + (top + r) * N + left;
      if (whole) store_four<CWhole>(Four<T>{{sum[r][0], sum[r][1], sum[r][2], sum[r][3]}}, to);
      else
        for (int i = 0; i < 4 && left + i < N; ++i) to[i] = sum[r][i];
    }
  }
}

}  // namespace nestgrad::cuda
