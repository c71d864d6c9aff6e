// Which instruction set's kernels run. The best one of the processor, or what NESTGRAD_ISA names: scalar, v3
// or v4 on x86-64 (plain code, x86-64-v3 with AVX2, x86-64-v4 with AVX-512), neon on arm64. Results have the
// same bits under all of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ops/kernels/table.h"

namespace nestgrad {

// The kernels for plans that are made now. ConfigError if NESTGRAD_ISA names none that this processor runs.
// Any thread.
const KernelTable& kernels();

// Names of the instruction sets that this processor runs, the slowest first.
std::vector<std::string_view> instruction_sets();
// The one that runs, for people: "v4 (AVX-512)".
std::string instruction_set();
// Another one from now on, for plans made after it. ConfigError if this processor does not run it.
void set_instruction_set(std::string_view name);

// Kernels by element type.
template <class T>
const ReduceKernel<T>& reduce_kernel() {
  if constexpr (sizeof(T) == sizeof(double)) return *kernels().reduce_f64;
  else if constexpr (static_cast<T>(0.5) == 0) return *kernels().reduce_i32;
  else return *kernels().reduce_f32;
}
template <class T>
const SolveKernel<T>& solve_kernel() {
  if constexpr (sizeof(T) == sizeof(double)) return *kernels().solve_f64;
  else return *kernels().solve_f32;
}
template <class T>
const GemmKernel<T>& gemm_kernel() {
  if constexpr (sizeof(T) == sizeof(double)) return *kernels().gemm_f64;
  else return *kernels().gemm_f32;
}
template <class T>
const AttentionKernel<T>& attention_kernel() {
  if constexpr (sizeof(T) == sizeof(double)) return *kernels().attention_f64;
  else return *kernels().attention_f32;
}

}  // namespace nestgrad
