// Dense matrix products, shared among threads. The kernels are in ops/kernels/gemm.*.
#pragma once

#include "ops/kernels.h"

namespace nestgrad {

// C[m,n] = op(A) op(B), all dense and row-major; op: as it is, or transposed.
//
// An element of C is one sum over k in ascending order, by fused multiply-adds; every
// kBlock of k a new sum begins, and the sums are added up in order. That is all that
// enters, whatever the extents and flags, and wherever the operands lie: a row of a tall
// product has the bits of the same row among fewer. Only a vector against rows that lie
// along k is added up in another order, by lanes, also one that depends on nothing but k.
//
// Immutable and without memory of its own: any number of threads may run one.
template <class T>
class Gemm {
 public:
  Gemm(std::int64_t m, std::int64_t n, std::int64_t k, bool transpose_a, bool transpose_b)
      : Gemm(gemm_kernel<T>().plan(m, n, k, transpose_a, transpose_b)) {}
  // C[m,m] = A A', given A twice: the lower half is multiplied, the upper one copied. In one part, without D.
  static Gemm symmetric(std::int64_t m, std::int64_t k) {
    return Gemm(gemm_kernel<T>().symmetric_plan(m, k));
  }

  // Part i of `parts`, some rows, of C = op(A) op(B) + D, with the bits of the product and the sum one after
  // the other; C may be D. D may be null; if not, only when k is one block.
  static constexpr std::int64_t kBlock = kGemmBlock;
  void part(const T* a, const T* b, const T* d, T* c, int i, int parts) const;

  // Flops that are worth a thread.
  static constexpr std::int64_t kShare = std::int64_t{1} << 22;

  // Of `count` products of this kind: into how many parts they are shared among threads, all together, and
  // each of them. The first is 1 where sharing is not worth it.
  struct Sharing {
    int all, each;
  };
  Sharing sharing(std::int64_t count) const;

 private:
  explicit Gemm(const GemmPlan& plan) : kernel_(gemm_kernel<T>()), plan_(plan) {}

  const GemmKernel<T>& kernel_;
  GemmPlan plan_;
};

}  // namespace nestgrad
