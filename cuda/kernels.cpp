#include "cuda/kernels.h"

#include <mutex>

namespace nestgrad::cuda {

void fill_in_kernels() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const Op* op : op_table()) {
      if (op->loop) set_cuda_kernel(op->name, elementwise_kernel);
      if (op->view) set_cuda_kernel(op->name, view_kernel);
    }
    set_cuda_kernel("concat", concat_kernel);
    set_cuda_kernel("pad", pad_kernel);
    set_cuda_kernel("cast", cast_kernel);
    set_cuda_kernel("gather", gather_kernel);
    set_cuda_kernel("scatter_add", scatter_add_kernel);
    set_cuda_kernel("iota", iota_kernel);
    set_cuda_kernel("tril", tril_kernel);
    set_cuda_kernel("cumsum", cumsum_kernel);
    set_cuda_kernel("sum", sum_kernel);
    set_cuda_kernel("max_over", max_over_kernel);
    set_cuda_kernel("matmul", matmul_kernel);
    set_cuda_kernel("triangular_solve", triangular_solve_kernel);
    set_cuda_kernel("solve", solve_kernel);
  });
}

}  // namespace nestgrad::cuda
