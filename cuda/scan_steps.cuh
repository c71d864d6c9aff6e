// How a block of threads takes a slice through the steps of a scan: what is the same for the interpreter of texts (cuda/scan.cu) and
// for kernels that are written for one scan (cuda/scan_source.h).
#pragma once

#include "cuda/device.cuh"
#include "cuda/scan_arguments.h"
#include "engine/plan/step_addresses.h"

namespace nestgrad::cuda {

// Where a value is at each step, for one slice: begin + stride * time, or, of a window, of time % window.
struct ValueLine {
  std::byte* begin;
  std::int64_t stride;
  int window;  // 0: none
  int bytes;   // of the value; 0: by the number of the step, not by its time
  NESTGRAD_HOST_DEVICE std::byte* at(int time) const {
    return begin + static_cast<std::int64_t>(window ? time % window : time) * stride;
  }
};

// At the front of a block's shared memory, so that no step has to look anything up in the memory of the GPU: where the step's values
// are (of stacks, those that steps write are results), what the carries are now, and the lines of carries, xs and stacks; then, at a
// multiple of 16 bytes, the slice's memory.
NESTGRAD_HOST_DEVICE inline int most_externals(const StepTableView& t) {
  return 2 * t.carries + t.xs + t.constants + t.stacks;
}
NESTGRAD_HOST_DEVICE inline int scan_table_bytes(const StepTableView& t) {
  const int pointers = most_externals(t) + t.carries, lines = t.carries + t.xs + t.stacks;
  const int bytes =
      pointers * static_cast<int>(sizeof(std::byte*)) + lines * static_cast<int>(sizeof(ValueLine));
  return (bytes + 15) / 16 * 16;
}

struct BaseOf {
  std::byte* memory;  // of the slice
  const Bases& bases;
  NESTGRAD_HOST_DEVICE std::byte* operator()(int number) const {
    return number == 0 ? memory : bases.at[number];
  }
};

// The line of a value of which each time has its own place.
__device__ inline ValueLine line_of(const StepAddresses<BaseOf>& addresses, const StepValue& v) {
  return {addresses.at(v, 0), v.stride, v.window, static_cast<int>(v.part.bytes)};
}
// Of a stack that is written: all in one place if nobody wants it.
__device__ inline ValueLine line_of(const StepAddresses<BaseOf>& addresses, const StepValue& stack,
                                    const Stretch& steps) {
  if (addresses.is_stored(stack, steps)) return line_of(addresses, stack);
  return {addresses.written(stack, steps, 0), 0, 0, static_cast<int>(stack.part.bytes)};
}

// What a step at `time` reads, brought nearer while the step before it runs. Values with a window were made just now.
__device__ inline void fetch_ahead(const ValueLine* xs, int count, int time) {
  constexpr int kLine = 128;  // bytes
  const int lane = static_cast<int>(threadIdx.x % kWarp), warp = static_cast<int>(threadIdx.x / kWarp),
            warps = static_cast<int>(blockDim.x / kWarp);
  for (int k = warp; k < count; k += warps) {
    const ValueLine x = xs[k];
    if (x.window) continue;
    for (int at = lane * kLine; at < x.bytes; at += static_cast<int>(kWarp) * kLine)
      prefetch(x.at(time) + at);
  }
}

// step(memory, external): does one step of the slice that has this memory; external: its values, in the order of the body's
// operands and results. All threads call it, after all that came before.
template <class T, class Step>
__device__ void run_steps(const StepTableView& t, const Bases& bases, const Stretch& steps,
                          const Step& step) {
  NESTGRAD_SHARED(std::byte*, table);
  const int inputs = t.carries + t.xs + t.constants;
  std::byte** const external = table;
  std::byte** const carried = table + most_externals(t);
  ValueLine* const carry_lines = reinterpret_cast<ValueLine*>(carried + t.carries);
  ValueLine *const x_lines = carry_lines + t.carries, *const stack_lines = x_lines + t.xs;
  std::byte* const memory = reinterpret_cast<std::byte*>(table) + scan_table_bytes(t);
  const StepAddresses<BaseOf> addresses(t, blockIdx.x, BaseOf{memory, bases});
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x),
            ahead = t.reverse ? -1 : 1;

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
  // A carry that is not kept has two places, which steps take by turns.
  for (int k = thread; k < t.carries; k += threads) {
    const StepCarry& c = t.carry[k];
    carry_lines[k] = addresses.keeps(c, steps) ? line_of(addresses, t.stack[c.stack])
                                               : ValueLine{memory + c.even, c.odd - c.even, 2, 0};
  }
  for (int k = thread; k < t.xs; k += threads) x_lines[k] = line_of(addresses, t.x[k]);
  for (int k = thread; k < t.constants; k += threads)
    external[t.carries + t.xs + k] = addresses.at(t.constant[k], 0);
  int results = 0;  // stacks that are
  for (int k = 0; k < t.stacks; ++k)
    if (!t.stack[k].of_carry) {
      if (results == thread) stack_lines[results] = line_of(addresses, t.stack[k], steps);
      ++results;
    }
  for (int i = 0; i < steps.count; ++i) {
    const int time = steps.first + ahead * i;
    const bool last = i + 1 == steps.count;
    __syncthreads();
    for (int k = thread; k < t.carries; k += threads) {
      external[k] = carried[k];
      const ValueLine line = carry_lines[k];
      carried[k] = external[inputs + k] =
          last ? addresses.next(t.carry[k], steps, i, time) : line.at(line.bytes == 0 ? i : time + ahead);
    }
    for (int k = thread; k < t.xs; k += threads) external[t.carries + k] = x_lines[k].at(time);
    for (int k = thread; k < results; k += threads)
      external[inputs + t.carries + k] = stack_lines[k].at(time);
    __syncthreads();
    if (!last) fetch_ahead(x_lines, t.xs, time + ahead);
    step(memory, external);
  }
}

}  // namespace nestgrad::cuda
