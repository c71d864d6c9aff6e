#include "engine/core/device.h"

#include <fmt/format.h>

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <optional>

#include "engine/core/context.h"
#include "engine/core/device_memory.h"

namespace nestgrad {

Device Device::cuda(int index) {
  const int count = cuda_count();
  if (index < 0 || index >= count)
    throw DeviceError(count == 0 ? fmt::format("[device] cuda:{} was asked for: {}", index, why_no_cuda())
                                 : fmt::format("[device] cuda:{} was asked for, there {} {} (cuda:0{})",
                                               index, count == 1 ? "is only" : "are", count,
                                               count == 1 ? "" : fmt::format(" to cuda:{}", count - 1)));
  return Device(cuda_device_memory(index));
}

Device Device::of(std::string_view name) {
  if (name == "cpu") return cpu();
  if (name == "cuda") return cuda();
  int index = -1;
  const std::string_view prefix = "cuda:";
  if (name.starts_with(prefix)) {
    const char* end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, index);
    if (error == std::errc() && stop == end && index >= 0) return cuda(index);
  }
  throw ConfigError(fmt::format("[device] '{}' is no device; say cpu, cuda or cuda:1", name));
}

namespace {
// What set_default_device() was given; the environment is not looked at then.
std::optional<Device>& given_default() {
  static auto& device = *new std::optional<Device>;
  return device;
}
const Device& default_of_environment() {
  static const auto& device = *new Device([] {
    const char* name = std::getenv("NESTGRAD_DEVICE");
    return name ? Device::of(name) : Device::cpu();
  }());
  return device;
}
}  // namespace

std::string_view name(Precision precision) {
  switch (precision) {
    case Precision::f32:
      return "f32";
    case Precision::tf32:
      return "tf32";
    case Precision::bf16:
      break;
  }
  return "bf16";
}

Precision precision_named(std::string_view wanted) {
  for (const Precision p : {Precision::f32, Precision::tf32, Precision::bf16})
    if (name(p) == wanted) return p;
  throw ConfigError(fmt::format("[device] '{}' is no precision; say f32, tf32 or bf16", wanted));
}

namespace {
std::atomic<Precision>& the_default_precision() {
  static std::atomic<Precision> precision{Precision::f32};
  return precision;
}
}  // namespace

Precision default_precision() { return context().precision.value_or(the_default_precision()); }
void set_default_precision(Precision precision) { the_default_precision() = precision; }

Device default_device() {
  if (context().device) return *context().device;
  return given_default() ? *given_default() : default_of_environment();
}
void set_default_device(Device device) { given_default() = std::move(device); }

int Device::cuda_count() { return cuda_device_count(); }
std::string Device::why_no_cuda() { return why_no_cuda_device(); }

std::string Device::name() const { return memory_ ? memory_->name() : "cpu"; }
std::string Device::description() const { return memory_ ? memory_->description() : "cpu"; }
void Device::synchronize() const {
  if (memory_) memory_->synchronize();
}
Device::Memory Device::memory() const { return memory_ ? memory_->memory() : Memory{}; }
Backend* Device::backend() const { return memory_ ? &memory_->backend() : nullptr; }

}  // namespace nestgrad
