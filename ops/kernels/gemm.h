// Dense matrix products, fast at the small and medium sizes that test-time
// training is made of: the kernels, one set of them for every instruction set.
// Who calls them picks a set and shares the work among threads (ops/gemm.h).
#pragma once

#include <cstdint>

#include "ops/numerics/isa.h"

namespace nestgrad {

// C[m,n] = op(A) op(B), all dense and row-major; op: as it is, or transposed.
//
// An element of C is one sum over k in ascending order, by fused multiply-adds; every kGemmBlock of k a new
// sum begins, and the sums are added up in order. That is all that enters, whatever the extents and flags,
// the instruction set, and wherever the operands lie: a row of a tall product has the bits of the same row
// among fewer. Only a vector against rows that lie along k is added up in another order, by lanes of a fixed
// number, also one that depends on nothing but k.
constexpr std::int64_t kGemmBlock = 256;

// What the kernels of one instruction set decided for one shape. Only those kernels understand it.
struct GemmPlan {
  std::int64_t m, n, k;
  bool ta, tb;
  bool swapped;        // C' = B' A' is computed instead; m, n, ta and tb are about that
  bool along;          // a vector against rows that lie along k
  bool pack, pack_a;   // all panels of B are copied before they are multiplied, and so are the tiles of A
  bool direct;  // neither is, k is one block, nothing is swapped, and ragged panels can be read exactly
  bool symmetric;      // C = A A': what is above the diagonal is copied from below
  std::int64_t units;  // what can be shared: rows of C (of C' where swapped), elements of C where along

  // Columns are multiplied in panels, from left to right; panels of one width are a group. Rows are
  // multiplied in tiles, even to a row: the first ones are a row higher.
  struct Group {
    std::int64_t end;          // of its columns
    std::int64_t width, last;  // of a panel; of its last packet, in C
    int max_height;
    bool ragged;
    std::int64_t tiles, height, higher;  // of all rows
    void (*multiply_higher)();
    void (*multiply)();
  };
  static constexpr int kMaxGroups = 5;
  int groups;
  Group group[kMaxGroups];
};

// Pure functions, with a buffer for each thread.
template <class T>
struct GemmKernel {
  GemmPlan (*plan)(std::int64_t m, std::int64_t n, std::int64_t k, bool transpose_a, bool transpose_b);
  // Of C[m,m] = A A': b is a, and all units are run at once, without D. The bits are those of any product.
  GemmPlan (*symmetric_plan)(std::int64_t m, std::int64_t k);
  // Units begin..end of C = op(A) op(B) + D, with the bits of the product and the sum one after the other. D
  // may be C; it may be null; if not, only when k is one block.
  void (*run)(const GemmPlan& plan, const T* a, const T* b, const T* d, T* c, std::int64_t begin,
              std::int64_t end);
  int tile_rows;  // rows that are multiplied together: a share of fewer is waste
};

inline namespace NESTGRAD_ISA {
extern const GemmKernel<float> gemm_f32;
extern const GemmKernel<double> gemm_f64;
}  // namespace NESTGRAD_ISA

}  // namespace nestgrad
