// The formulas of ops/elementwise.def on the device, with the bits that they have on the CPU (compiled
// without contraction of products and sums), and how a block of threads runs the steps of a cluster.
#pragma once

#include "cuda/cluster_arguments.h"
#include "cuda/cluster_text.h"
#include "cuda/device.cuh"
#include "ops/numerics/formulas.h"

namespace nestgrad::cuda {

static_assert(kMostIn == kMostClusterInputs && kMostOut == kMostClusterOps);

template <class T>
struct Block {
  T* memory;
  const Pointers& pointers;
  Sizes sizes;
  std::int64_t first_row;

  __device__ T* at(const Operand& o) const {
    const std::int64_t begin = o.wide ? first_row * sizes.row : first_row;
    if (o.kind == Operand::slot) return memory + static_cast<std::int64_t>(o.index) * sizes.slot_stride;
    if (o.kind == Operand::output) return reinterpret_cast<T*>(pointers.out[o.index]) + begin;
    T* x = const_cast<T*>(reinterpret_cast<const T*>(pointers.in[o.index]));
    return o.one ? x : x + begin;
  }
};

// Elements that are loaded and stored at once: 16 bytes.
template <class T>
struct alignas(16) Wide {
  static constexpr unsigned kCount = 16 / sizeof(T);
  T x[kCount];
};

// The elements of a block that this thread makes, in every step alike: what it made in one, it may read in the next without
// a barrier.
template <class T, class One>
__device__ void for_own_elements(unsigned count, const One& one) {
  constexpr unsigned kWide = Wide<T>::kCount;
  for (unsigned begin = threadIdx.x * kWide; begin < count; begin += blockDim.x * kWide)
    for (unsigned i = begin; i < begin + kWide && i < count; ++i) one(i);
}

// Element by element: an operand is contiguous, one for all, or one a row. A block has few enough for 32 bits.
template <class T>
struct Reader {
  const T* x;
  unsigned row;  // 0: elements; 1: one for all; else the elements that one serves
  __device__ T operator[](unsigned i) const { return row == 0 ? x[i] : row == 1 ? *x : x[i / row]; }
  // May elements be read Wide::kCount at a time?
  __device__ bool is_wide() const {
    if (row == 0) return reinterpret_cast<std::uintptr_t>(x) % sizeof(Wide<T>) == 0;
    return row == 1 || row % Wide<T>::kCount == 0;
  }
  __device__ Wide<T> wide(unsigned i) const {
    if (row == 0) return *reinterpret_cast<const Wide<T>*>(x + i);
    const T one = row == 1 ? *x : x[i / row];
    Wide<T> out;
    for (unsigned k = 0; k < Wide<T>::kCount; ++k) out.x[k] = one;
    return out;
  }
};

template <class F, class T>
__device__ void elements(const Block<T>& block, const Step& step, std::int64_t n) {
  if constexpr (F::integers || !std::is_same_v<T, std::int32_t>) {
    constexpr unsigned kWide = Wide<T>::kCount;
    const auto count = static_cast<unsigned>(n);
    Reader<T> in[F::operands];
    T* y = block.at(step.out);
    bool wide = count % kWide == 0 && reinterpret_cast<std::uintptr_t>(y) % sizeof(Wide<T>) == 0;
    for (int k = 0; k < F::operands; ++k) {
      const Operand& o = step.in[k];
      in[k] = {block.at(o), o.one ? 1 : o.wide == step.out.wide ? 0 : static_cast<unsigned>(block.sizes.row)};
      wide = wide && in[k].is_wide();
    }
    if (wide) {                                                                     // for all threads alike
      for (unsigned i = threadIdx.x * kWide; i < count; i += blockDim.x * kWide) {  // its own elements
        Wide<T> x[F::operands], out;
        for (int k = 0; k < F::operands; ++k) x[k] = in[k].wide(i);
        for (unsigned e = 0; e < kWide; ++e)
          if constexpr (F::operands == 1) out.x[e] = F::of(x[0].x[e]);
          else if constexpr (F::operands == 2) out.x[e] = F::of(x[0].x[e], x[1].x[e]);
          else out.x[e] = F::of(x[0].x[e], x[1].x[e], x[2].x[e]);
        *reinterpret_cast<Wide<T>*>(y + i) = out;
      }
      return;
    }
    for_own_elements<T>(count, [&](unsigned i) {
      if constexpr (F::operands == 1) y[i] = F::of(in[0][i]);
      else if constexpr (F::operands == 2) y[i] = F::of(in[0][i], in[1][i]);
      else y[i] = F::of(in[0][i], in[1][i], in[2][i]);
    });
  }
}

// A warp a row. The first element is of all lanes, so that a maximum begins with one.
template <template <class> class R, class T>
__device__ void reduce_rows(const Block<T>& block, const Step& step, std::int64_t rows) {
  const T* x = block.at(step.in[0]);
  T* y = block.at(step.out);
  const std::int64_t row = block.sizes.row;
  const unsigned lane = threadIdx.x % kWarp;
  for (std::int64_t r = threadIdx.x / kWarp; r < rows; r += blockDim.x / kWarp) {
    R<T> mine(x[r * row]);
    for (std::int64_t i = lane; i < row; i += kWarp) mine.add(x[r * row + i]);
    const T total = over_warp(mine).value();
    if (lane == 0) y[r] = total;
  }
}

template <class T>
__device__ void run(const Block<T>& block, const Step& step, const Strided* walks, std::int64_t rows) {
  const std::int64_t n = step.out.wide ? rows * block.sizes.row : rows;
  switch (step.code) {
#define UNARY(NAME, ...) \
  case code_##NAME:      \
    return elements<formula::NAME>(block, step, n);
#include "ops/elementwise.def"
    case code_row_sum:
      return reduce_rows<Sum>(block, step, rows);
    case code_row_max:
      return reduce_rows<Max>(block, step, rows);
    case code_spread: {
      const T* x = reinterpret_cast<const T*>(block.pointers.in[step.in[0].index]);
      T* y = block.at(step.out);
      const std::int64_t begin = step.out.wide ? block.first_row * block.sizes.row : block.first_row;
      const Strided& walk = walks[step.spread];
      for_own_elements<T>(static_cast<unsigned>(n), [&](unsigned i) { y[i] = x[walk.at(begin + i)]; });
      return;
    }
    default:
      return;
  }
}

// All steps, for all rows of parts first_part, first_part
// + part_stride, ..; a barrier stands before each part.
template <class T>
__device__ void run_cluster(const Text& text, const Strided* walks, const Pointers& pointers,
                            const Sizes& sizes, T* memory, std::int64_t first_part,
                            std::int64_t part_stride) {
  const std::int64_t parts = (sizes.rows + sizes.rows_at_once - 1) / sizes.rows_at_once;
  for (std::int64_t part = first_part; part < parts; part += part_stride) {
    const Block<T> block{memory, pointers, sizes, part * sizes.rows_at_once};
    const std::int64_t left = sizes.rows - block.first_row,
                       rows = left < sizes.rows_at_once ? left : sizes.rows_at_once;
    __syncthreads();
    for (int s = 0; s < text.steps; ++s) {
      if (text.step[s].barrier) __syncthreads();
      run(block, text.step[s], walks, rows);
    }
  }
}

}  // namespace nestgrad::cuda
