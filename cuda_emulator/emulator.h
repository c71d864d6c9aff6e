// What tests control of the emulated devices, and what they can ask. The emulator runs CUDA kernels on the
// CPU, strictly: it poisons what CUDA leaves undefined and closes what CUDA does not let the host touch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace nestgrad::emulator {

// In which order the threads of a block, and the blocks of a grid, get their turn.
enum class Order { forward, reverse, shuffled };

struct Settings {
  Settings();  // order: NESTGRAD_EMULATOR_ORDER if it is set to one of the names above
  Order order = Order::forward;
  int devices = 1;
  std::size_t memory = std::size_t{4} << 30;  // bytes of a device
  int multiprocessors = 4;
  int driver_version = 13000;  // 0: no driver
  bool memory_pools = true;    // cudaMallocAsync and its like are there
  // A kernel, and cuBLAS, may not do their first work since reset() while a stream captures: CUDA loads then.
  bool lazy_loading = false;
};
// May be changed between calls of the runtime.
Settings& settings();

// The nth call of this function of the runtime or of cuBLAS from now on does nothing and returns this error.
// "kernel" stands for the execution of a kernel: the nth from now on ends in this error.
void fail_call(std::string_view function, int error, int nth = 1);

// Since the last reset().
std::int64_t calls(std::string_view function);
std::int64_t launches();   // kernels that ran; calls of cuBLAS are not counted
std::string last_fault();  // what a kernel did wrong, and which of its threads; empty: nothing

std::size_t allocated(int device = 0);  // bytes

// Forgets faults, planned failures, counts and work that did not run, and returns to the default settings and the first device.
// Memory, streams, events and handles live on.
void reset();

}  // namespace nestgrad::emulator
