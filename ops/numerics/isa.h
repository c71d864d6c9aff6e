// Kernels are compiled once for every instruction set, each time in a namespace of its own: NESTGRAD_ISA is
// its name, `v3` for example. All that a kernel needs lives in that namespace, templates too, so that the
// linker never takes a function that was compiled for a newer processor in place of one that every processor
// runs. Code that is not a kernel is compiled for any processor; there the namespace is `plain`.
#pragma once

#ifndef NESTGRAD_ISA
#define NESTGRAD_ISA plain
#endif

// Before a function of numbers or packs of them that kernels, host code and CUDA kernels share.
#ifdef __CUDACC__
#define NESTGRAD_SHARED_FN __host__ __device__ __forceinline__
#else
#define NESTGRAD_SHARED_FN inline __attribute__((always_inline))
#endif
