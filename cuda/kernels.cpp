#include "cuda/kernels.h"

#include <mutex>

#include "ops/table.h"

namespace nestgrad::cuda {

void fill_in_kernels() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const Op* op : op_table()) {
      if (op->element_loop) op->cuda = elementwise_kernel;
      if (op->view) op->cuda = view_kernel;
    }
    concat_op.cuda = concat_kernel;
    pad_op.cuda = pad_kernel;
    cast_op.cuda = cast_kernel;
    gather_op.cuda = gather_kernel;
    scatter_op.cuda = scatter_add_kernel;
    index_add_op.cuda = index_add_kernel;
    iota_op.cuda = iota_kernel;
    tril_op.cuda = tril_kernel;
    cumsum_op.cuda = cumsum_kernel;
    sum_op.cuda = sum_kernel;
    max_over_op.cuda = max_over_kernel;
    matmul_op.cuda = matmul_kernel;
    all_sum_op.cuda = all_sum_kernel;
    exchange_op.cuda = exchange_kernel;
    rank_before_op.cuda = rank_after_op.cuda = neighbour_kernel;
    triangular_solve_op.cuda = triangular_solve_kernel;
    solve_op.cuda = solve_kernel;
  });
}

}  // namespace nestgrad::cuda
