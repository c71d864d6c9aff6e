// The kernels of the CUDA backend, one file a family as in ops/: each makes the kernel of one call.
#pragma once

#include <cuda_runtime.h>

#include "engine/plan/backend.h"

namespace nestgrad::cuda {

class CudaBackend;

// The column `cuda` of the op table. Once; later calls do nothing.
void fill_in_kernels();
// What is wrong if this build has no kernels that the thread's device can run.
cudaError_t code_for_this_device();

OpKernel elementwise_kernel(const OpCall& call, Backend& backend);
OpKernel view_kernel(const OpCall& call, Backend& backend);  // of ops with Op::view
OpKernel concat_kernel(const OpCall& call, Backend& backend);
OpKernel pad_kernel(const OpCall& call, Backend& backend);
OpKernel cast_kernel(const OpCall& call, Backend& backend);
OpKernel gather_kernel(const OpCall& call, Backend& backend);
OpKernel scatter_add_kernel(const OpCall& call, Backend& backend);
OpKernel index_add_kernel(const OpCall& call, Backend& backend);
OpKernel iota_kernel(const OpCall& call, Backend& backend);
OpKernel tril_kernel(const OpCall& call, Backend& backend);
OpKernel cumsum_kernel(const OpCall& call, Backend& backend);
OpKernel sum_kernel(const OpCall& call, Backend& backend);
OpKernel max_over_kernel(const OpCall& call, Backend& backend);
OpKernel matmul_kernel(const OpCall& call, Backend& backend);
// n floats as bf16, to nearest even.
void round_to_bf16(const CudaBackend& backend, const std::byte* from, std::byte* to, std::int64_t n);
OpKernel all_sum_kernel(const OpCall& call, Backend& backend);  // these: cuda/collectives.cu
OpKernel exchange_kernel(const OpCall& call, Backend& backend);
OpKernel neighbour_kernel(const OpCall& call, Backend& backend);
OpKernel triangular_solve_kernel(const OpCall& call, Backend& backend);
OpKernel solve_kernel(const OpCall& call, Backend& backend);

}  // namespace nestgrad::cuda
