// Races in kernels are found by ThreadSanitizer: mirrors arrays through shared memory and across blocks, with
// or without what orders the accesses. Build with -fsanitize=thread, but the sources of the emulator without.
//   emulator_race clean     every access is ordered: no report, exit code 0
//   emulator_race barrier   a barrier is missing: a report, exit code 66
//   emulator_race warp      lanes do not wait for each other: the same
//   emulator_race blocks    two blocks write to one place: the same
#include <cuda_runtime.h>

#include <cstdio>
#include <string_view>
#include <vector>

#include "cuda_emulator/thread.h"

namespace {

struct Faults {
  bool barrier, warp, blocks;
};

__global__ void mirror(float* x, float* total, Faults faults) {
  float* tile = reinterpret_cast<float*>(nestgrad::emulator::shared_memory());
  const unsigned i = threadIdx.x;
  float* mine = &x[blockIdx.x * blockDim.x + i];
  for (int round = 0; round < 3; ++round) {
    tile[i] = *mine;
    __syncthreads();
    *mine = tile[blockDim.x - 1 - i];
    if (!faults.barrier) __syncthreads();
  }
  __syncthreads();
  for (unsigned step = 16; step > 0; step /= 2) {
    tile[i] = *mine;
    if (!faults.warp) __syncwarp();
    const float other = tile[i ^ step];
    if (!faults.warp) __syncwarp();
    *mine += other + 0 * __shfl_xor_sync(~0u, other, 1);
  }
  if (faults.blocks && i == 0) *total += *mine;
  if (!faults.blocks && i == 0) atomicAdd(total, *mine);
}

bool ok(cudaError_t error) {
  if (error != cudaSuccess) std::puts(cudaGetErrorString(error));
  return error == cudaSuccess;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string_view mode = count == 2 ? arguments[1] : "";
  Faults faults{mode == "barrier", mode == "warp", mode == "blocks"};
  const unsigned blocks = 4, threads = 64, n = blocks * threads;
  float* x = nullptr;
  std::vector<float> host(n + 1, 1.f);
  bool fine = ok(cudaMalloc(reinterpret_cast<void**>(&x), (n + 1) * sizeof(float)));
  fine = fine && ok(cudaMemcpy(x, host.data(), (n + 1) * sizeof(float), cudaMemcpyHostToDevice));
  float* total = x + n;
  void* launch[] = {&x, &total, &faults};
  for (int i = 0; i < 2; ++i)
    fine = fine && ok(cudaLaunchKernel(mirror, blocks, threads, launch, threads * sizeof(float)));
  fine = fine && ok(cudaMemcpy(host.data(), x, (n + 1) * sizeof(float), cudaMemcpyDeviceToHost));
  return fine && host[0] == 1024 && ok(cudaFree(x)) ? 0 : 1;
}
