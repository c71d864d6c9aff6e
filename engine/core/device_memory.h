// DeviceMemory: the memory of a device other than the CPU, as arrays need it. Implemented by cuda/. What
// compiles plans for the device is its Backend (engine/plan/backend.h).
//
// All work of a device goes into one queue and happens in its order; a call returns before its work is done,
// unless it says that it waits. Addresses are the device's: the host does not read there.
#pragma once

#include "engine/core/device.h"
#include "engine/core/random_fill.h"

namespace nestgrad {

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual std::string name() const = 0;
  virtual std::string description() const = 0;
  virtual Device::Memory memory() const = 0;  // a plan that needs more than is free is refused
  virtual Backend& backend() = 0;

  // DeviceError, with what is free, where it does not fit.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void release(std::byte* address) noexcept = 0;

  // `from` may be changed when the call returns.
  virtual void upload(const std::byte* from, std::byte* to, std::size_t bytes) = 0;
  virtual void download(const std::byte* from, std::byte* to, std::size_t bytes) = 0;  // waits
  virtual void copy(const std::byte* from, std::byte* to, std::size_t bytes) = 0;
  virtual void zero(std::byte* at, std::size_t bytes) = 0;
  virtual void random(const RandomFill& fill, std::int64_t n, std::byte* to) = 0;  // n elements
  virtual void synchronize() = 0;  // waits; throws what went wrong since
};

// Of the CUDA backend; cuda/no_cuda.cpp stands in where it is not built.
std::shared_ptr<DeviceMemory> cuda_device_memory(int index);
int cuda_device_count();
std::string why_no_cuda_device();

}  // namespace nestgrad
