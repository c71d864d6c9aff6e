// Ops that only move elements: those with Op::view (broadcast_to, permute, slice), concat, pad; and cast.
#include <cuda_bf16.h>

#include "cuda/backend.h"
#include "cuda/device.cuh"
#include "cuda/kernels.h"
#include "cuda/moves.h"

namespace nestgrad::cuda {

namespace {

template <class U>
__global__ void move_elements(const U* source, U* target, Move move) {
  const std::int64_t i = global_thread();
  if (i >= move.size) return;
  target[move.target_offset + move.to.at(i)] = source[move.source_offset + move.from.at(i)];
}

void queue(const CudaBackend& backend, const Move& move, DType dtype, const std::byte* source,
           std::byte* target) {
  const Extent extent = for_each_of(move.size);
  if (size_of(dtype) == 8)
    launch(backend, extent, move_elements<std::uint64_t>, reinterpret_cast<const std::uint64_t*>(source),
           reinterpret_cast<std::uint64_t*>(target), move);
  else
    launch(backend, extent, move_elements<std::uint32_t>, reinterpret_cast<const std::uint32_t*>(source),
           reinterpret_cast<std::uint32_t*>(target), move);
}

template <class From, class To>
__global__ void convert(const From* from, To* to, std::int64_t n, Fault* fault, int site) {
  const std::int64_t i = global_thread();
  if (i >= n) return;
  if constexpr (std::is_integral_v<To> && !std::is_integral_v<From>) {
    if (!has_i32(from[i])) {
      report(fault, site, static_cast<float>(from[i]));
      to[i] = 0;
      return;
    }
  }
  to[i] = static_cast<To>(from[i]);
}

__global__ void round_elements(const float* from, __nv_bfloat16* to, std::int64_t n) {
  const std::int64_t i = global_thread();
  if (i < n) to[i] = __float2bfloat16_rn(from[i]);
}

}  // namespace

void round_to_bf16(const CudaBackend& backend, const std::byte* from, std::byte* to, std::int64_t n) {
  launch(backend, for_each_of(n), round_elements, reinterpret_cast<const float*>(from),
         reinterpret_cast<__nv_bfloat16*>(to), n);
}

OpKernel view_kernel(const OpCall& call, Backend& backend) {
  return [&on = cuda(backend), dtype = call.out.dtype, move = move_of_view(call)](
             const std::byte* const* in, std::byte* out) { queue(on, move, dtype, in[0], out); };
}

OpKernel concat_kernel(const OpCall& call, Backend& backend) {
  return [&on = cuda(backend), dtype = call.out.dtype, moves = moves_of_concat(call)](
             const std::byte* const* in, std::byte* out) {
    for (std::size_t i = 0; i < moves.size(); ++i) queue(on, moves[i], dtype, in[i], out);
  };
}

OpKernel pad_kernel(const OpCall& call, Backend& backend) {
  return [&on = cuda(backend), spec = call.out, move = move_of_pad(call)](const std::byte* const* in,
                                                                          std::byte* out) {
    on.zero(out, spec.bytes());
    queue(on, move, spec.dtype, in[0], out);
  };
}

OpKernel cast_kernel(const OpCall& call, Backend& backend) {
  return dispatch(call.in[0].dtype, [&]<class From>(From) {
    return dispatch(call.out.dtype, [&]<class To>(To) -> OpKernel {
      const int site =
          cuda(backend).fault_site(call, "{} is no i32, which goes from -2147483648 to 2147483647");
      return [&on = cuda(backend), n = call.out.size(), site](const std::byte* const* in, std::byte* out) {
        launch(on, for_each_of(n), convert<From, To>, reinterpret_cast<const From*>(in[0]),
               reinterpret_cast<To*>(out), n, on.faults(), site);
      };
    });
  });
}

}  // namespace nestgrad::cuda
