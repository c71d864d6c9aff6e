// sum and max over axes, in an order fixed by the shape. Many terms of few outputs are cut into parts, each of which a block
// reduces; a second kernel puts the parts together.
#include "cuda/backend.h"
#include "cuda/ceil_of.h"
#include "cuda/kernels.h"
#include "cuda/reductions.cuh"

namespace nestgrad::cuda {

namespace {

constexpr unsigned kRows = 8;  // warps of a block

// How the terms of each output are cut: part p has those from p * length on.
struct Parts {
  std::int64_t count = 1, length = 0;
};

// A warp an output, whose terms lie next to each other or in any order.
template <template <class> class R, class T>
__global__ void reduce_runs(const T* x, T* y, Reduction reduction) {
  const std::int64_t output = static_cast<std::int64_t>(blockIdx.x) * kRows + threadIdx.x / kWarp;
  if (output >= reduction.outputs) return;
  const T total = reduce_by_warp<R>(reduction, x, output);
  if (threadIdx.x % kWarp == 0) y[output] = total;
}

// A block a part of an output: partial[output][part].
template <template <class> class R, class T>
__global__ void reduce_parts_of_runs(const T* x, R<T>* partial, Reduction reduction, Parts parts) {
  NESTGRAD_SHARED(R<T>, warps);
  const std::int64_t output = blockIdx.x / parts.count, part = blockIdx.x % parts.count;
  const std::int64_t begin = part * parts.length, rest = reduction.terms - begin;
  const std::int64_t end = begin + (rest < parts.length ? rest : parts.length);
  const T* from = x + reduction.kept.at(output);
  R<T> mine = over_warp(reduce_terms<R>(reduction, from, begin + threadIdx.x, end, blockDim.x));
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = mine;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (unsigned w = 1; w < kRows; ++w) mine.absorb(warps[w]);
  partial[blockIdx.x] = mine;
}

// A thread column for each of 32 outputs that lie next to each other; kRows threads share the terms of one, or of a part of
// them: then partial[part][output] gets the result, else y.
template <template <class> class R, class T>
__global__ void reduce_columns(const T* x, T* y, R<T>* partial, Reduction reduction, Parts parts) {
  NESTGRAD_SHARED(R<T>, rows);  // [kRows][kWarp]
  const unsigned lane = threadIdx.x % kWarp, row = threadIdx.x / kWarp;
  const std::int64_t groups = (reduction.outputs + kWarp - 1) / kWarp, part = blockIdx.x / groups;
  const std::int64_t output = blockIdx.x % groups * kWarp + lane;
  const bool inside = output < reduction.outputs;
  const std::int64_t begin = part * parts.length, rest = reduction.terms - begin;
  const std::int64_t end = begin + (rest < parts.length ? rest : parts.length);
  R<T> total(T(0));
  if (inside && reduction.terms > 0)
    total = reduce_terms<R>(reduction, x + reduction.kept.at(output), begin + row, end, kRows);
  rows[threadIdx.x] = total;
  __syncthreads();
  if (row != 0 || !inside) return;
  for (unsigned r = 1; r < kRows; ++r) total.absorb(rows[r * kWarp + lane]);
  if (partial) partial[part * reduction.outputs + output] = total;
  else y[output] = total.value();
}

// A thread an output, of outputs that lie next to each other and have few terms each.
constexpr std::int64_t kFewTerms = 16;
template <template <class> class R, class T>
__global__ void reduce_few(const T* x, T* y, Reduction reduction) {
  const std::int64_t output = global_thread();
  if (output >= reduction.outputs) return;
  y[output] = reduce_terms<R>(reduction, x + reduction.kept.at(output), 0, reduction.terms, 1).value();
}

// A warp an output puts its parts together.
template <template <class> class R, class T>
__global__ void absorb_parts(const R<T>* partial, T* y, std::int64_t outputs, std::int64_t output_stride,
                             std::int64_t parts, std::int64_t part_stride) {
  const std::int64_t output = static_cast<std::int64_t>(blockIdx.x) * kRows + threadIdx.x / kWarp;
  if (output >= outputs) return;
  const R<T>* from = partial + output * output_stride;
  const std::int64_t lane = threadIdx.x % kWarp;
  R<T> total = from[(lane < parts ? lane : 0) * part_stride];
  for (std::int64_t p = lane + kWarp; p < parts; p += kWarp) total.absorb(from[p * part_stride]);
  if (lane >= parts) total = R<T>(total.value());  // of a sum zero, of a maximum one of its terms
  total = over_warp(total);
  if (lane == 0) y[output] = total.value();
}

// A block shall have enough to do, there shall be enough blocks to fill a GPU, and few parts of an output; all of that by the
// shape, so that sums do not depend on the device.
Parts parts_of(const Reduction& reduction, bool columns) {
  const std::int64_t blocks = ceil_of(reduction.outputs, columns ? kWarp : kRows);
  constexpr std::int64_t kEnoughBlocks = 256;
  const std::int64_t length = columns ? 256 : 4096, most = columns ? 64 : 1024;
  if (blocks == 0 || blocks >= kEnoughBlocks || reduction.terms <= length) return {1, reduction.terms};
  const std::int64_t parts = std::min(most, ceil_of(reduction.terms, length));
  const std::int64_t each = ceil_of(ceil_of(reduction.terms, parts), kRows * kWarp) * kRows * kWarp;
  return {ceil_of(reduction.terms, each), each};
}

template <template <class> class R, class T>
OpKernel reduce_kernel(const OpCall& call, CudaBackend& backend) {
  const Reduction reduction = reduction_of(call);
  const bool columns = reduction.kept.rank > 0 && reduction.kept.stride[reduction.kept.rank - 1] == 1;
  const bool few = columns && reduction.terms > 0 && reduction.terms <= kFewTerms;
  const std::int64_t outputs = call.out.size();
  const Parts parts = parts_of(reduction, columns);
  const bool cut = parts.count > 1;
  if (cut) backend.need_scratch(static_cast<std::size_t>(outputs * parts.count) * sizeof(R<T>));
  const Extent at_end{ceil_of(outputs, kRows), kRows * kWarp};
  return [=, &backend](const std::byte* const* in, std::byte* out) {
    const T* x = reinterpret_cast<const T*>(in[0]);
    T* y = reinterpret_cast<T*>(out);
    R<T>* partial = cut ? scratch_of<R<T>>(in, 1) : nullptr;
    if (few) launch(backend, for_each_of(outputs), reduce_few<R, T>, x, y, reduction);
    else if (columns)
      launch(backend, {ceil_of(outputs, kWarp) * parts.count, kRows * kWarp, kRows * kWarp * sizeof(R<T>)},
             reduce_columns<R, T>, x, y, partial, reduction, parts);
    else if (cut)
      launch(backend, {outputs * parts.count, kRows * kWarp, kRows * sizeof(R<T>)},
             reduce_parts_of_runs<R, T>, x, partial, reduction, parts);
    else launch(backend, at_end, reduce_runs<R, T>, x, y, reduction);
    if (cut)
      launch(backend, at_end, absorb_parts<R, T>, partial, y, outputs, columns ? 1 : parts.count, parts.count,
             columns ? outputs : 1);
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
