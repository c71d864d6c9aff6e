// How a block of threads takes a slice through the steps of a scan: what is the same for the interpreter of texts (cuda/scan.cu) and
// for kernels that are written for one scan (cuda/scan_source.h).
#pragma once

#include "cuda/device.cuh"
#include "cuda/scan_arguments.h"
#include "engine/plan/step_addresses.h"

namespace nestgrad::cuda {

struct BaseOf {
  std::byte* memory;  // of the slice
  const Bases& bases;
  NESTGRAD_HOST_DEVICE std::byte* operator()(int number) const {
    return number == 0 ? memory : bases.at[number];
  }
};

// step(memory, external): does one step of the slice that has this memory; external: its values, in the order of the body's
// operands and results. All threads call it, after all that came before.
template <class T, class Step>
__device__ void run_steps(const StepTableView& t, const Bases& bases, const Stretch& steps,
                          const Step& step) {
  NESTGRAD_SHARED(std::byte*, table);
  const int inputs = t.carries + t.xs + t.constants;
  std::byte** const external = table;
  std::byte** const carried = table + kMostExternals;
  std::byte* const memory = reinterpret_cast<std::byte*>(table) + kScanTableBytes;
  const StepAddresses<BaseOf> addresses(t, blockIdx.x, BaseOf{memory, bases});
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);

  for (int c = 0; c < t.carries; ++c) {
    const StepCarry& carry = t.carry[c];
    const std::int64_t n = carry.part.bytes / static_cast<std::int64_t>(sizeof(T));
    T* begin = reinterpret_cast<T*>(addresses.begin(carry, steps));
    if (addresses.begins_with_zeros(carry, steps))
      for (std::int64_t i = thread; i < n; i += threads) begin[i] = T(0);
    if (addresses.keeps(carry, steps)) {
      T* to = reinterpret_cast<T*>(addresses.at(t.stack[carry.stack], steps.first));
      for (std::int64_t i = thread; i < n; i += threads) to[i] = begin[i];
    }
    if (thread == 0) carried[c] = reinterpret_cast<std::byte*>(begin);
  }
  for (int i = 0; i < steps.count; ++i) {
    const int time = t.reverse ? steps.first - i : steps.first + i;
    __syncthreads();
    for (int k = thread; k < t.carries; k += threads) {
      external[k] = carried[k];
      carried[k] = external[inputs + k] = addresses.next(t.carry[k], steps, i, time);
    }
    for (int k = thread; k < t.xs; k += threads) external[t.carries + k] = addresses.at(t.x[k], time);
    for (int k = thread; k < t.constants; k += threads)
      external[t.carries + t.xs + k] = addresses.at(t.constant[k], time);
    if (thread == 0)
      for (int k = 0, out = inputs + t.carries; k < t.stacks; ++k)
        if (!t.stack[k].of_carry) external[out++] = addresses.written(t.stack[k], steps, time);
    __syncthreads();
    step(memory, external);
  }
}

}  // namespace nestgrad::cuda
