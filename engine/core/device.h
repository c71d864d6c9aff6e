// Device: where arrays lie and plans run. The CPU, or a GPU if this build has the CUDA backend and the
// machine a GPU.
//
//   Function g = f.to(Device::cuda());
//   Array y = g(x);                    // x and y on the CPU: copied there and back
//   Array z = g(x.to(Device::cuda()));  // z stays on the GPU
//
// One thread at a time may use a GPU. Work there is queued: a call whose results stay there returns before
// they are made. What went wrong is thrown by the next call that waits: Array::to(Device::cpu()),
// Array::item(), synchronize().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace nestgrad {

class Backend;       // engine/plan/backend.h
class DeviceMemory;  // engine/core/device_memory.h

class Device {
 public:
  Device() = default;  // the CPU
  static Device cpu() { return {}; }
  // DeviceError where this build has no CUDA backend, or the machine no such GPU.
  static Device cuda(int index = 0);
  // "cpu", "cuda" or "cuda:1". ConfigError for anything else, DeviceError as cuda() has it.
  static Device of(std::string_view name);
  // How many GPUs there are, and why there is none, for people.
  static int cuda_count();
  static std::string why_no_cuda();
  // Of another backend, whose folder says how it is made. Devices are equal that have the same memory object.
  explicit Device(std::shared_ptr<DeviceMemory> memory) : memory_(std::move(memory)) {}

  bool is_cpu() const { return !memory_; }
  std::string name() const;         // as `of` wants it
  std::string description() const;  // with the make of the device
  void synchronize() const;
  struct Memory {
    std::size_t free = 0, total = 0;  // bytes
  };
  Memory memory() const;  // of a GPU
  bool operator==(const Device&) const = default;

  // Null for the CPU: what keeps its arrays, and what compiles its plans.
  DeviceMemory* device_memory() const { return memory_.get(); }
  Backend* backend() const;

 private:
  std::shared_ptr<DeviceMemory> memory_;
};

// Default device for plans that name none: that of the thread's innermost DeviceScope
// (engine/core/context.h), else what set_default_device() was given last, at first the environment's
// NESTGRAD_DEVICE (written as for Device::of), else the CPU. What is set is the process's: set it before
// other threads begin.
Device default_device();
void set_default_device(Device device);

// What the operands of f32 matrix products are rounded to on a GPU, for its tensor cores. Everything is
// stored, and every product added up, in f32 all the same. The CPU, products of f64, those of a scan's kernel
// that is interpreted, and small ones of one that is compiled, keep their precision whatever is said.
enum class Precision : std::uint8_t {
  f32,
  tf32,  // 10 bits after the point, the range of f32
  bf16,  // 7 bits after the point, the range of f32
};
std::string_view name(Precision precision);
Precision precision_named(std::string_view name);  // ConfigError for an unknown one; lists them
// Default precision for plans that name none: that of the thread's innermost PrecisionScope, else what was
// set for the process; f32 at first.
Precision default_precision();
void set_default_precision(Precision precision);

}  // namespace nestgrad
