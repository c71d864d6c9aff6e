// Small helpers of the emulator's tests, and kernels that several of them run.
#pragma once

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "cuda_emulator/emulator.h"

namespace nestgrad::emulator::testing {

// ThreadSanitizer reports planted races: emulator_race.cpp shows that it does.
#ifdef __SANITIZE_THREAD__
inline constexpr bool kFindsRaces = true;
#else
inline constexpr bool kFindsRaces = false;
#endif

inline constexpr Order kOrders[] = {Order::forward, Order::reverse, Order::shuffled};

// Each case begins and ends with a device as it comes. What earlier cases have queued is done before: backends that live on
// count on it.
struct Fresh {
  Fresh() { cudaDeviceSynchronize(), emulator::reset(); }
  ~Fresh() { emulator::reset(); }
};

template <class... P, class... A>
cudaError_t launch_on(cudaStream_t stream, void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared,
                      A... a) {
  std::tuple<P...> values(a...);
  return std::apply(
      [&](P&... each) {
        void* arguments[] = {&each..., nullptr};
        return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
      },
      values);
}
template <class... P, class... A>
cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared, A... a) {
  return launch_on(nullptr, kernel, grid, block, shared, a...);
}

// An array on the device.
template <class T>
struct Array {
  T* data = nullptr;
  std::size_t size;
  explicit Array(std::size_t n) : size(n) {
    REQUIRE(cudaMalloc(reinterpret_cast<void**>(&data), n * sizeof(T)) == cudaSuccess);
  }
  explicit Array(const std::vector<T>& values) : Array(values.size()) {
    REQUIRE(cudaMemcpy(data, values.data(), size * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  ~Array() { cudaFree(data); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  std::vector<T> read() const {
    std::vector<T> out(size);
    REQUIRE(cudaMemcpy(out.data(), data, size * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
    return out;
  }
};

// What the emulator says of a kernel that ends in this error. Afterwards there was no fault; settings stay.
template <class... P, class... A>
std::string fault_of(cudaError_t error, void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared,
                     A... a) {
  REQUIRE(launch(kernel, grid, block, shared, a...) == cudaSuccess);
  CHECK(cudaDeviceSynchronize() == error);
  const std::string text = emulator::last_fault();
  const Settings kept = emulator::settings();
  emulator::reset();
  emulator::settings() = kept;
  return text;
}

inline bool contains(const std::string& text, std::string_view part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) MESSAGE(text);
  return found;
}

struct Stream {
  cudaStream_t handle = nullptr;
  explicit Stream(unsigned flags = cudaStreamNonBlocking) {
    REQUIRE(cudaStreamCreateWithFlags(&handle, flags) == cudaSuccess);
  }
  ~Stream() { cudaStreamDestroy(handle); }
};

__device__ inline float* shared_floats() { return reinterpret_cast<float*>(emulator::shared_memory()); }
__device__ inline unsigned linear_thread() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
__device__ inline unsigned linear_block() {
  return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
}

__global__ inline void write_bytes(unsigned char* x, int at) { x[at] = 1; }
__global__ inline void add_one(float* x, int n) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) x[i] += 1;
}
__global__ inline void nothing() {}

}  // namespace nestgrad::emulator::testing
