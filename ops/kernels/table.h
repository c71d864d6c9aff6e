// KernelTable: the CPU kernels of one instruction set. The files of this folder are compiled once for every
// set that the processor family has (cmake/NestgradKernels.cmake), each time into a namespace of its own;
// ops/kernels.h picks the table that this process runs. All tables give the same bits.
//
// A kernel is one thread's work on plain pointers: who shares
// work among threads, and who knows tensors, is outside.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/kernels/attention.h"
#include "ops/kernels/gemm.h"
#include "ops/numerics/isa.h"

namespace nestgrad {

// The elementwise formulas, in the order of their file.
enum class Formula : int {
#define UNARY(NAME, ...) NAME,
#include "ops/elementwise.def"
  count
};

constexpr int kMostOperands = 3;  // of a formula
// Element types in the order of DType: f32, f64, i32.
constexpr int kElementTypes = 3;

// n elements of each operand to n of the output; contiguous, or one element for all.
using ElementKernel = void (*)(const std::byte* const* in, std::byte* out, std::int64_t n);

// Reductions of runs of `inner` contiguous elements that begin at x + steps[0], .., x + steps[count - 1].
template <class T>
struct ReduceKernel {
  // All of them to one number. f32 as in ops/numerics/lane_sum.h; f64, and i32 in 64 bits: element i of a run
  // in partial sum i mod 8, what is left of eights in the first, then the eight in a fixed order.
  T (*sum)(const T* x, const std::int64_t* steps, std::int64_t count, std::int64_t inner);
  // Element i of each, to y[i]; in the order of the runs, of f32 eight at a time, then in double.
  void (*sum_across)(const T* x, const std::int64_t* steps, std::int64_t count, std::int64_t inner, T* y);
  // The largest; NaN where there is one. Zeros of both signs
  // are equal: which one it is depends on the order alone.
  T (*max)(const T* x, const std::int64_t* steps, std::int64_t count, std::int64_t inner);
  void (*max_across)(const T* x, const std::int64_t* steps, std::int64_t count, std::int64_t inner, T* y);
  // The same of each of `rows` runs of n elements, one behind the other, to y[0], y[1], ..; 0 < n < kMostShort.
  void (*sum_short)(const T* x, std::int64_t rows, std::int64_t n, T* y);
  void (*max_short)(const T* x, std::int64_t rows, std::int64_t n, T* y);
  // The same of one run of n elements, with pointers as an op's row has them.
  void (*sum_row)(const std::byte* in, std::byte* out, std::int64_t n);
  void (*max_row)(const std::byte* in, std::byte* out, std::int64_t n);

  static constexpr std::int64_t kMostShort = 64 / sizeof(T);  // fewer than there are lanes
};

// Linear systems of n equations; matrices are row-major and dense.
template <class T>
struct SolveKernel {
  // x[n, m], the right-hand sides, becomes the solutions of op(A) x = b, by substitution.
  // Read is the lower triangle of A, or the upper one; of the transpose of A, where
  // `transposed`. unit: the diagonal is ones and is not read. Row after row, each minus
  // the products of the rows before it, in their order, by fused multiply-adds.
  void (*substitute)(const T* a, T* x, std::int64_t n, std::int64_t m, bool lower, bool transposed,
                     bool unit);
  // A becomes its factors L (below the diagonal, which is ones) and U; row i of L U is row order[i] of A. The
  // pivot of a column is its largest number, the first of equals, NaN before all.
  void (*factor)(T* a, std::int64_t* order, std::int64_t n);
};

// [formula][element type][operands of which one element serves for all, as bits]; null where there is none.
struct ElementKernels {
  ElementKernel of[static_cast<int>(Formula::count)][kElementTypes][1 << kMostOperands];
};

struct KernelTable {
  const char* name;         // as NESTGRAD_ISA has it: v4
  const char* description;  // AVX-512
  const ElementKernels* elementwise;
  const ReduceKernel<float>* reduce_f32;
  const ReduceKernel<double>* reduce_f64;
  const ReduceKernel<std::int32_t>* reduce_i32;
  const SolveKernel<float>* solve_f32;
  const SolveKernel<double>* solve_f64;
  const GemmKernel<float>* gemm_f32;
  const GemmKernel<double>* gemm_f64;
  const AttentionKernel<float>* attention_f32;
  const AttentionKernel<double>* attention_f64;
};

// Of each set, in its own files.
inline namespace NESTGRAD_ISA {
extern const ElementKernels elementwise;
extern const ReduceKernel<float> reduce_f32;
extern const ReduceKernel<double> reduce_f64;
extern const ReduceKernel<std::int32_t> reduce_i32;
extern const SolveKernel<float> solve_f32;
extern const SolveKernel<double> solve_f64;
extern const KernelTable table;
}  // namespace NESTGRAD_ISA

}  // namespace nestgrad
