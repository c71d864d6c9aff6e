// The runtime's functions for errors, devices and kernels.
#include <fmt/format.h>

#include <algorithm>

#include "cuda_emulator/queue.h"
#include "cuda_emulator/shared_memory.h"

using namespace nestgrad::emulator;

namespace {

// The most bytes of shared memory that this kernel may be launched with.
std::size_t shared_limit(const void* kernel) {
  const auto consent = runtime().shared_bytes.find(kernel);
  const std::size_t bytes = consent == runtime().shared_bytes.end() ? 0 : std::size_t(consent->second);
  return std::max(kSharedBytesWithoutConsent, bytes);
}

cudaError_t check(const Launch& launch) {
  const auto [gx, gy, gz] = uint3(launch.grid);
  const auto [bx, by, bz] = uint3(launch.block);
  if (gx == 0 || gy == 0 || gz == 0 || bx == 0 || by == 0 || bz == 0) return cudaErrorInvalidConfiguration;
  if (gx > 0x7fffffffu || gy > 65535 || gz > 65535) return cudaErrorInvalidConfiguration;
  if (bx > 1024 || by > 1024 || bz > 64 || bx * by * bz > 1024) return cudaErrorInvalidConfiguration;
  return launch.shared_bytes > shared_limit(launch.kernel) ? cudaErrorInvalidValue : cudaSuccess;
}

void run_and_check(const Launch& launch, int index) {
  ++runtime().launches;
  if (const int planned = planned_failure("kernel"))
    throw Fault{cudaError_t(planned), fmt::format("[{}] planned failure", describe(launch))};
  for (std::size_t i = 0; i < launch.pointers.size(); ++i)
    if (launch.pointers[i] != nullptr && place_of(launch.pointers[i], 0) == Place::pageable)
      throw Fault{cudaErrorIllegalAddress,
                  fmt::format("[{}] pointer {} of its arguments is memory of the host", describe(launch), i)};
  run_kernel(launch, runtime().settings.order);
  if (const std::string damage = device(index).memory.damage(); !damage.empty())
    throw Fault{cudaErrorIllegalAddress, fmt::format("[{}] {}", describe(launch), damage)};
}

bool known_device(int index) { return index >= 0 && index < runtime().settings.devices; }

}  // namespace

cudaError_t nestgrad::emulator::queue_launch(Launch launch, cudaStream_t stream) {
  return call("cudaLaunchKernel", Capturing::allowed, [&] {
    if (const cudaError_t error = check(launch); error != cudaSuccess) return error;
    const void* const kernel = launch.kernel;
    if (const cudaError_t error = load(stream, kernel); error != cudaSuccess) return error;
    return enqueue(
        stream, [launch = std::move(launch), index = current_device()] { run_and_check(launch, index); },
        kernel);
  });
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define NESTGRAD_EMULATOR_NAME(name, value, text) \
  case name:                                      \
    return #name;
    NESTGRAD_EMULATOR_CUDA_ERRORS(NESTGRAD_EMULATOR_NAME)
#undef NESTGRAD_EMULATOR_NAME
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
#define NESTGRAD_EMULATOR_TEXT(name, value, text) \
  case name:                                      \
    return text;
    NESTGRAD_EMULATOR_CUDA_ERRORS(NESTGRAD_EMULATOR_TEXT)
#undef NESTGRAD_EMULATOR_TEXT
  }
  return "unrecognized error code";
}

// --- Devices.

cudaError_t cudaDriverGetVersion(int* version) {
  *version = settings().driver_version;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  return call("cudaGetDeviceCount", Capturing::allowed, [&] { *count = settings().devices; });
}

cudaError_t cudaGetDevice(int* index) {
  return call("cudaGetDevice", Capturing::allowed, [&] { *index = current_device(); });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
  return call("cudaGetDeviceProperties", Capturing::allowed, [&] {
    if (!known_device(index)) return cudaErrorInvalidDevice;
    *properties = {.name = "Emulated device",
                   .totalGlobalMem = settings().memory,
                   .sharedMemPerBlock = kSharedBytesWithoutConsent,
                   .regsPerBlock = 65536,
                   .warpSize = 32,
                   .maxThreadsPerBlock = 1024,
                   .maxThreadsDim = {1024, 1024, 64},
                   .maxGridSize = {0x7fffffff, 65535, 65535},
                   .major = 9,
                   .minor = 0,
                   .multiProcessorCount = settings().multiprocessors,
                   .l2CacheSize = 50 << 20,
                   .maxThreadsPerMultiProcessor = 2048,
                   .sharedMemPerMultiprocessor = kMostSharedBytes + 1024,
                   .sharedMemPerBlockOptin = kMostSharedBytes};
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int index) {
  return call("cudaDeviceGetPCIBusId", Capturing::allowed, [&] {
    if (!known_device(index)) return cudaErrorInvalidDevice;
    const std::string id = fmt::format("0000:{:02X}:00.0", index + 1);
    if (text == nullptr || length <= static_cast<int>(id.size())) return cudaErrorInvalidValue;
    std::copy_n(id.c_str(), id.size() + 1, text);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int index) {
  cudaDeviceProp all;
  if (const cudaError_t error = cudaGetDeviceProperties(&all, index); error != cudaSuccess) return error;
  const std::map<cudaDeviceAttr, int> values{
      {cudaDevAttrMaxThreadsPerBlock, all.maxThreadsPerBlock},
      {cudaDevAttrMaxSharedMemoryPerBlock, int(all.sharedMemPerBlock)},
      {cudaDevAttrWarpSize, all.warpSize},
      {cudaDevAttrMultiProcessorCount, all.multiProcessorCount},
      {cudaDevAttrMaxThreadsPerMultiProcessor, all.maxThreadsPerMultiProcessor},
      {cudaDevAttrComputeCapabilityMajor, all.major},
      {cudaDevAttrComputeCapabilityMinor, all.minor},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, int(all.sharedMemPerMultiprocessor)},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, int(all.sharedMemPerBlockOptin)},
      {cudaDevAttrMemoryPoolsSupported, settings().memory_pools}};
  return call("cudaDeviceGetAttribute", Capturing::allowed, [&] {
    const auto found = values.find(attribute);
    if (found == values.end()) return cudaErrorInvalidValue;
    *value = found->second;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call("cudaDeviceSynchronize", Capturing::forbidden, [] {
    wait_until([] { return run_all(current_device()); });
    device(current_device()).pool.trim();
  });
}

// --- Kernels.

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  return call("cudaFuncSetAttribute", Capturing::allowed, [&] {
    if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || std::size_t(value) > kMostSharedBytes) return cudaErrorInvalidValue;
    runtime().shared_bytes[kernel] = value;
    return cudaSuccess;
  });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  return call("cudaFuncGetAttributes", Capturing::allowed, [&] {
    if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
    *attributes = {.maxThreadsPerBlock = 1024, .numRegs = 32, .ptxVersion = 90, .binaryVersion = 90};
    attributes->maxDynamicSharedSizeBytes = int(shared_limit(kernel));
    return cudaSuccess;
  });
}
