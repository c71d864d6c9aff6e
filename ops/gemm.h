// Dense matrix products, fast at the small and medium sizes that test-time training is made of. Internal to
// ops/.
#pragma once

#include <cstdint>

namespace nestgrad {

// C[m,n] = op(A) op(B), all dense and row-major; op: as it is, or transposed.
//
// An element of C is one sum over k in ascending order, by fused multiply-adds where the processor has them;
// every kBlock of k a new sum begins, and the sums are added up in order. That is all that enters, whatever
// the extents and flags, and wherever the operands lie: a row of a tall product has the bits of the same row
// among fewer. Only a vector against rows that lie along k is added up in another order, by lanes, also one
// that depends on nothing but k.
//
// Immutable and without memory of its own: any number of threads may run one.
template <class T>
class Gemm {
 public:
  Gemm(std::int64_t m, std::int64_t n, std::int64_t k, bool transpose_a, bool transpose_b);

  // Part i of `parts`, some rows, of C = op(A) op(B) + D, with the bits of the product and the sum one after
  // the other; C may be D. D may be null; if not, only when k is one block.
  static constexpr std::int64_t kBlock = 256;
  void part(const T* a, const T* b, const T* d, T* c, int i, int parts) const;

  // Of `count` products of this kind: into how many parts they are shared among threads, all together, and
  // each of them. The first is 1 where sharing is not worth it.
  struct Sharing {
    int all, each;
  };
  Sharing sharing(std::int64_t count) const;

 private:
  struct Block {  // of k
    std::int64_t done, k;
  };
  void run_vector(const T* matrix, const T* vector, const T* d, T* c) const;
  void run_rows(const T* a, const T* b, const T* d, T* c, std::int64_t from, std::int64_t rows) const;
  int packets_for(std::int64_t columns) const;
  struct Part {  // of C: some of the rows, some of the columns
    std::int64_t row, rows, column, columns;
  };
  void multiply_part(const T* a, const T* b, const T* plus, T* c, Block block, Part part) const;

  bool swapped_;  // C' = B' A' is computed instead; all below is about that
  bool along_;    // a vector against rows that lie along k
  std::int64_t m_, n_, k_;
  bool ta_, tb_;
  bool pack_;    // all panels of B are copied before they are multiplied
  bool pack_a_;  // and so are the tiles of A, where a tile is spread over memory
  int panel_;    // packets of columns that are multiplied together
};

}  // namespace nestgrad
