// gather and scatter_add: rows of a table by index, and their sums back, in index order. An index outside of
// the table is reported, and reads zeros or adds nothing.
#include <algorithm>
#include <string>

#include "cuda/backend.h"
#include "cuda/device.cuh"
#include "cuda/kernels.h"

namespace nestgrad::cuda {

namespace {

struct Rows {
  std::int64_t count, width, rows;  // of indices, elements of a row, rows of the table
};

__device__ bool is_inside(std::int32_t index, std::int64_t rows, Fault* fault, int site) {
  if (index >= 0 && index < rows) return true;
  report(fault, site, index);
  return false;
}

template <class U>
__global__ void gather(const U* table, const std::int32_t* index, U* out, Rows size, Fault* fault, int site) {
  const std::int64_t i = global_thread();
  if (i >= size.count * size.width) return;
  const std::int32_t row = index[i / size.width];
  out[i] = is_inside(row, size.rows, fault, site) ? table[row * size.width + i % size.width] : U(0);
}

__global__ void check_indices(const std::int32_t* index, std::int64_t count, std::int64_t rows, Fault* fault,
                              int site) {
  const std::int64_t i = global_thread();
  if (i < count) is_inside(index[i], rows, fault, site);
}

template <class T>
__device__ T added(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
  else return a + b;
}

// A warp a row of the table and 32 of its elements; it looks at 32 indices at once.
template <class T>
__global__ void scatter_add(const std::int32_t* index, const T* updates, T* out, Rows size) {
  const std::int64_t tiles = (size.width + kWarp - 1) / kWarp, part = global_thread() / kWarp;
  if (part >= size.rows * tiles) return;
  const unsigned lane = threadIdx.x % kWarp;
  const std::int64_t row = part / tiles, column = part % tiles * kWarp + lane;
  T total = T(0);
  for (std::int64_t begin = 0; begin < size.count; begin += kWarp) {
    const bool here = begin + lane < size.count && index[begin + lane] == row;
    for (unsigned hits = __ballot_sync(kFullWarp, here); hits != 0; hits &= hits - 1) {
      const std::int64_t i = begin + __ffs(static_cast<int>(hits)) - 1;
      if (column < size.width) total = added(total, updates[i * size.width + column]);
    }
  }
  if (column < size.width) out[row * size.width + column] = total;
}

std::string outside_of(std::int64_t rows) {
  return "index {} is outside of the table's " + std::to_string(rows) + " rows";
}

}  // namespace

OpKernel gather_kernel(const OpCall& call, Backend& backend) {
  const std::int64_t rows = call.in[0].shape[0], count = call.in[1].size();
  const Rows size{count, call.out.size() / std::max<std::int64_t>(1, count), rows};
  return [size, &on = cuda(backend), wide = size_of(call.out.dtype) == 8,
          site = cuda(backend).fault_site(call, outside_of(rows))](const std::byte* const* in,
                                                                   std::byte* out) {
    const auto queue = [&]<class U>(U) {
      launch(on, for_each_of(size.count * size.width), gather<U>, reinterpret_cast<const U*>(in[0]),
             reinterpret_cast<const std::int32_t*>(in[1]), reinterpret_cast<U*>(out), size, on.faults(),
             site);
    };
    if (wide) queue(std::uint64_t{});
    else queue(std::uint32_t{});
  };
}

OpKernel scatter_add_kernel(const OpCall& call, Backend& backend) {
  const std::int64_t rows = call.out.shape[0];
  const Rows size{call.in[0].size(), call.out.size() / std::max<std::int64_t>(1, rows), rows};
  return dispatch(call.out.dtype, [&]<class T>(T) -> OpKernel {
    return [size, &on = cuda(backend), site = cuda(backend).fault_site(call, outside_of(rows))](
               const std::byte* const* in, std::byte* out) {
      const auto* index = reinterpret_cast<const std::int32_t*>(in[0]);
      launch(on, for_each_of(size.count), check_indices, index, size.count, size.rows, on.faults(), site);
      const std::int64_t warps = size.rows * ((size.width + kWarp - 1) / kWarp);
      launch(on, for_each_of(warps * kWarp), scatter_add<T>, index, reinterpret_cast<const T*>(in[1]),
             reinterpret_cast<T*>(out), size);
    };
  });
}

}  // namespace nestgrad::cuda
