// sum and max over axes, in an order fixed by the shape.
#include "cuda/backend.h"
#include "cuda/kernels.h"
#include "cuda/reductions.cuh"

namespace nestgrad::cuda {

namespace {

constexpr unsigned kRows = 8;  // warps of a block

// A warp an output, whose terms lie next to each other or in any order.
template <template <class> class R, class T>
__global__ void reduce_runs(const T* x, T* y, Reduction reduction) {
  const std::int64_t output = static_cast<std::int64_t>(blockIdx.x) * kRows + threadIdx.x / kWarp;
  if (output >= reduction.outputs) return;
  const T total = reduce_by_warp<R>(reduction, x, output);
  if (threadIdx.x % kWarp == 0) y[output] = total;
}

// A thread column for each of 32 outputs that lie next to each other; kRows threads share the terms of one.
template <template <class> class R, class T>
__global__ void reduce_columns(const T* x, T* y, Reduction reduction) {
  NESTGRAD_SHARED(R<T>, partial);  // [kRows][kWarp]
  const unsigned lane = threadIdx.x % kWarp, row = threadIdx.x / kWarp;
  const std::int64_t output = static_cast<std::int64_t>(blockIdx.x) * kWarp + lane;
  const bool inside = output < reduction.outputs;
  const T* from = inside && reduction.terms > 0 ? x + reduction.kept.at(output) : nullptr;
  R<T> total(from ? *from : T(0));
  if (from)
    for (std::int64_t k = row; k < reduction.terms; k += kRows) total.add(from[reduction.reduced.at(k)]);
  partial[threadIdx.x] = total;
  __syncthreads();
  if (row != 0 || !inside) return;
  for (unsigned r = 1; r < kRows; ++r) total.absorb(partial[r * kWarp + lane]);
  y[output] = total.value();
}

template <template <class> class R, class T>
OpKernel reduce_kernel(const OpCall& call, CudaBackend& backend) {
  const Reduction reduction = reduction_of(call);
  const bool columns = reduction.kept.rank > 0 && reduction.kept.stride[reduction.kept.rank - 1] == 1;
  const std::int64_t outputs = call.out.size(), of_block = columns ? kWarp : kRows;
  const Extent extent{(outputs + of_block - 1) / of_block, kRows * kWarp,
                      columns ? kRows * kWarp * sizeof(R<T>) : 0};
  return [=, &backend](const std::byte* const* in, std::byte* out) {
    launch(backend, extent, columns ? reduce_columns<R, T> : reduce_runs<R, T>,
           reinterpret_cast<const T*>(in[0]), reinterpret_cast<T*>(out), reduction);
  };
}

}  // namespace

OpKernel sum_kernel(const OpCall& call, Backend& backend) {
  return dispatch(call.out.dtype, [&]<class T>(T) { return reduce_kernel<Sum, T>(call, cuda(backend)); });
}

OpKernel max_over_kernel(const OpCall& call, Backend& backend) {
  return dispatch(call.out.dtype, [&]<class T>(T) { return reduce_kernel<Max, T>(call, cuda(backend)); });
}

}  // namespace nestgrad::cuda
