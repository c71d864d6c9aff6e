// What kernels share: the shared memory of a block, sums and maxima over a warp, positions in arrays. Device
// code of .cu files alone.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/strided.h"

// Declares `name`, a pointer to the dynamic shared memory of the block.
#ifdef __CUDACC__
#define NESTGRAD_SHARED(T, name)                                         \
  extern __shared__ __align__(16) unsigned char nestgrad_shared_bytes[]; \
  T* const name = reinterpret_cast<T*>(nestgrad_shared_bytes)
#else
#include "cuda/emulator/emulator.h"
#define NESTGRAD_SHARED(T, name) T* const name = reinterpret_cast<T*>(::nestgrad::emulator::shared_memory())
#endif

namespace nestgrad::cuda {

constexpr unsigned kWarp = 32, kFullWarp = 0xffffffffu;

__device__ inline std::int64_t global_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

// The two reductions. NaN wins a maximum, so that it is seen.
struct Sum {
  template <class T>
  __device__ static T empty(const T&) {
    return T(0);
  }
  template <class T>
  __device__ static T combine(T a, T b) {
    return a + b;
  }
  // The bits of a sum in 64, cut to 32.
  __device__ static std::int32_t combine(std::int32_t a, std::int32_t b) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
  }
};
struct Max {
  template <class T>
  __device__ static T empty(const T& first) {
    return first;
  }
  template <class T>
  __device__ static T combine(T a, T b) {
    return b == b ? (b > a ? b : a) : b;
  }
};

// Of all lanes' values, in a fixed order; every lane has the result. All lanes of the warp must take part.
template <class R, class T>
__device__ T over_warp(T x) {
  for (unsigned step = kWarp / 2; step > 0; step /= 2)
    x = R::combine(x, __shfl_xor_sync(kFullWarp, x, static_cast<int>(step)));
  return x;
}

}  // namespace nestgrad::cuda
