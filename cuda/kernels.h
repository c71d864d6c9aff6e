// The kernels of the CUDA backend, one file a family as in ops/: each makes the kernel of one call.
#pragma once

#include "engine/plan/backend.h"

namespace nestgrad::cuda {

class CudaBackend;

// The column `cuda` of the op table. Once; later calls do nothing.
void fill_in_kernels();

Kernel elementwise_kernel(const Call& call, Backend& backend);
Kernel view_kernel(const Call& call, Backend& backend);  // of ops with Op::view
Kernel concat_kernel(const Call& call, Backend& backend);
Kernel pad_kernel(const Call& call, Backend& backend);
Kernel cast_kernel(const Call& call, Backend& backend);
Kernel gather_kernel(const Call& call, Backend& backend);
Kernel scatter_add_kernel(const Call& call, Backend& backend);
Kernel iota_kernel(const Call& call, Backend& backend);
Kernel tril_kernel(const Call& call, Backend& backend);
Kernel cumsum_kernel(const Call& call, Backend& backend);
Kernel sum_kernel(const Call& call, Backend& backend);
Kernel max_over_kernel(const Call& call, Backend& backend);
Kernel matmul_kernel(const Call& call, Backend& backend);
// n floats as bf16, to nearest even.
void round_to_bf16(const CudaBackend& backend, const std::byte* from, std::byte* to, std::int64_t n);
Kernel triangular_solve_kernel(const Call& call, Backend& backend);
Kernel solve_kernel(const Call& call, Backend& backend);

}  // namespace nestgrad::cuda
