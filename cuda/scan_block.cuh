// The ops of a scan's body (cuda/scan_text.h), each by a whole block of threads.
#pragma once

#include "cuda/cluster.cuh"
#include "cuda/moves.h"
#include "cuda/reductions.cuh"
#include "cuda/scan_parts.cuh"
#include "cuda/scan_text.h"

namespace nestgrad::cuda {

// C = A B with 16 x 16 threads, each with Rows x 4 elements of C at a time. Rows of B lie next to each other.
template <int Rows, class T>
__device__ void product_tiles(const Product& p, const T* a, const T* b, std::int64_t b_row, T* out) {
  constexpr int kSide = 16, kColumns = 4;
  const int row_thread = static_cast<int>(threadIdx.x) / kSide,
            column_thread = static_cast<int>(threadIdx.x) % kSide;
  for (std::int64_t top = 0; top < p.m; top += kSide * Rows)
    for (std::int64_t left = 0; left < p.n; left += kSide * kColumns) {
      T total[Rows][kColumns] = {};
      const T* from_a[Rows];
      const T* from_b[kColumns];
      for (int r = 0; r < Rows; ++r) {
        const std::int64_t row = top + row_thread + r * kSide;
        from_a[r] = a + (row < p.m ? row : 0) * p.a_row;
      }
      for (int c = 0; c < kColumns; ++c) {
        const std::int64_t column = left + column_thread + c * kSide;
        from_b[c] = b + (column < p.n ? column : 0);
      }
      for (std::int64_t part = 0; part < p.parts; ++part) {
        T sum[Rows][kColumns] = {};
        for (std::int64_t k = 0; k < p.k / p.parts; ++k) {
          T x[Rows], y[kColumns];
          for (int r = 0; r < Rows; ++r) x[r] = *from_a[r];
          for (int c = 0; c < kColumns; ++c) y[c] = *from_b[c];
          for (int r = 0; r < Rows; ++r)
            for (int c = 0; c < kColumns; ++c) sum[r][c] = fma(x[r], y[c], sum[r][c]);
          for (int r = 0; r < Rows; ++r) from_a[r] += p.a_column;
          for (int c = 0; c < kColumns; ++c) from_b[c] += b_row;
        }
        for (int r = 0; r < Rows; ++r)
          for (int c = 0; c < kColumns; ++c) total[r][c] = part == 0 ? sum[r][c] : total[r][c] + sum[r][c];
      }
      for (int r = 0; r < Rows; ++r)
        for (int c = 0; c < kColumns; ++c) {
          const std::int64_t row = top + row_thread + r * kSide, column = left + column_thread + c * kSide;
          if (row < p.m && column < p.n) out[row * p.n + column] = total[r][c];
        }
    }
}

template <class T>
__device__ void run_product(const Product& p, const T* a, const T* b, T* out, T* scratch) {
  const bool transposes = transposes_b(p.n, p.b_row, p.b_column);
  for (std::int64_t i = 0; i < p.count; ++i) {
    const T *from_a = a + p.a.at(i), *from_b = b + p.b.at(i);
    T* to = out + i * p.m * p.n;
    if (transposes) {
      if (i > 0) __syncthreads();
      copy_transposed(from_b, scratch, static_cast<int>(p.n), static_cast<int>(p.k));
      __syncthreads();
      from_b = scratch;
    }
    const std::int64_t b_row = transposes ? padded_row(p.n) : p.b_row;
    if (p.m <= 16) product_tiles<1>(p, from_a, from_b, b_row, to);
    else if (p.m <= 32) product_tiles<2>(p, from_a, from_b, b_row, to);
    else product_tiles<4>(p, from_a, from_b, b_row, to);
  }
}

template <class T>
struct SliceMemory {
  std::byte* memory;
  std::byte* const* external;

  __device__ std::byte* at(const BlockPlace& p) const {
    if (p.kind == BlockPlace::memory) return memory + p.at;
    return p.kind == BlockPlace::external ? external[p.at] : reinterpret_cast<std::byte*>(p.at);
  }
  __device__ const T* in(const BlockOp& op, int i) const { return reinterpret_cast<const T*>(at(op.in[i])); }
  __device__ T* out(const BlockOp& op) const { return reinterpret_cast<T*>(at(op.out[0])); }
};

template <class T>
__device__ void run_op(const BlockOp& op, const SliceMemory<T>& where, T* scratch) {
  switch (op.code) {
    case BlockCode::cluster: {
      const auto& c = *static_cast<const BlockCluster*>(op.details);
      Pointers pointers;
      for (int i = 0; i < op.ins; ++i) pointers.in[i] = where.at(op.in[i]);
      for (int i = 0; i < op.outs; ++i) pointers.out[i] = where.at(op.out[i]);
      return run_cluster(c.text, c.walks, pointers, c.sizes, scratch, 0, 1);
    }
    case BlockCode::product:
      return run_product(*static_cast<const Product*>(op.details), where.in(op, 0), where.in(op, 1),
                         where.out(op), scratch);
    case BlockCode::move: {
      const auto& m = *static_cast<const Move*>(op.details);
      const T* from = where.in(op, 0);
      T* to = where.out(op);
      for (std::int64_t i = threadIdx.x; i < m.size; i += blockDim.x)
        to[m.target_offset + m.to.at(i)] = from[m.source_offset + m.from.at(i)];
      return;
    }
    case BlockCode::zero: {
      T* to = where.out(op);
      for (std::int64_t i = threadIdx.x; i < op.elements; i += blockDim.x) to[i] = T(0);
      return;
    }
    case BlockCode::sum:
    case BlockCode::largest: {
      const auto& r = *static_cast<const Reduction*>(op.details);
      const T* from = where.in(op, 0);
      T* to = where.out(op);
      if (r.terms > 0 && sums_by_threads(r.outputs, r.terms)) {
        for (std::int64_t o = threadIdx.x; o < r.outputs; o += blockDim.x) {
          const T* begin = from + r.kept.at(o);
          to[o] = op.code == BlockCode::sum ? reduce_terms<Sum>(r, begin, 0, r.terms, 1).value()
                                            : reduce_terms<Max>(r, begin, 0, r.terms, 1).value();
        }
        return;
      }
      for (std::int64_t o = threadIdx.x / kWarp; o < r.outputs; o += blockDim.x / kWarp) {
        const T total =
            op.code == BlockCode::sum ? reduce_by_warp<Sum>(r, from, o) : reduce_by_warp<Max>(r, from, o);
        if (threadIdx.x % kWarp == 0) to[o] = total;
      }
      return;
    }
    case BlockCode::tril: {
      const auto& t = *static_cast<const Triangle*>(op.details);
      const T* from = where.in(op, 0);
      T* to = where.out(op);
      for (std::int64_t i = threadIdx.x; i < t.size; i += blockDim.x)
        to[i] = i % t.columns <= i / t.columns % t.rows + t.diagonal ? from[i] : T(0);
      return;
    }
    case BlockCode::iota: {
      const auto& l = *static_cast<const Line*>(op.details);
      T* to = where.out(op);
      for (std::int64_t i = threadIdx.x; i < l.size; i += blockDim.x)
        to[i] = static_cast<T>(i / l.stride % l.extent);
      return;
    }
    case BlockCode::cumsum: {
      const auto& l = *static_cast<const Line*>(op.details);
      for (std::int64_t line = threadIdx.x; line < l.lines; line += blockDim.x)
        sum_along(where.in(op, 0), where.out(op), line, l.extent, l.stride, l.reverse != 0);
      return;
    }
  }
}

}  // namespace nestgrad::cuda
