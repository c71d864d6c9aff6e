// The runtime's functions for memory: allocation, copies, fills.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "cuda_emulator/poison.h"
#include "cuda_emulator/queue.h"

using namespace nestgrad::emulator;

Place nestgrad::emulator::place_of(const void* pointer, std::size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(pointer);
  for (auto& [index, device] : runtime().devices) {
    if (device.memory.holds(pointer, bytes)) return Place::device;
    if (!device.memory.describe(pointer).empty()) return Place::nowhere;
  }
  const auto after = runtime().pinned.upper_bound(at);
  if (after == runtime().pinned.begin()) return Place::pageable;
  const auto [begin, size] = *std::prev(after);
  if (at >= begin + size) return Place::pageable;
  return bytes <= size - std::size_t(at - begin) ? Place::pinned : Place::nowhere;
}

namespace {

// Memory of the host is everyone's; only the work of this device is waited for.
void finish_device() {
  run_everything();
  wait_until([] { return run_all(current_device()); });
}

bool fits(Place place, bool on_device) {
  return on_device ? place == Place::device : place == Place::pageable || place == Place::pinned;
}

void copy_now(void* to, const void* from, std::size_t bytes) {
  std::deque<DeviceMemory::Open> open;
  for (auto& [index, device] : runtime().devices) open.emplace_back(device.memory);
  if (place_of(to, bytes) == Place::nowhere || place_of(from, bytes) == Place::nowhere)
    throw Fault{cudaErrorIllegalAddress, "[memcpy] memory was freed before the copy ran"};
  std::memcpy(to, from, bytes);
}

cudaError_t queue_copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                       cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  const Place target = place_of(to, bytes), source = place_of(from, bytes);
  if (target == Place::nowhere || source == Place::nowhere || to == nullptr || from == nullptr)
    return cudaErrorInvalidValue;
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  if (kind != cudaMemcpyDefault &&
      (!fits(target, kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) ||
       !fits(source, kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice)))
    return cudaErrorInvalidMemcpyDirection;
  CUstream_st* queue = find_stream(stream);
  const bool captures = queue != nullptr && queue->capture != cudaStreamCaptureStatusNone;
  if (captures) return enqueue(stream, [=] { copy_now(to, from, bytes); });
  // Pageable memory belongs to the host again when the call returns: a source is read now, and a target holds
  // nothing until the host has waited.
  std::function<void()> copy = [=] { copy_now(to, from, bytes); };
  if (source == Place::pageable) {
    const auto* first = static_cast<const unsigned char*>(from);
    copy = [=, now = std::vector<unsigned char>(first, first + bytes)] { copy_now(to, now.data(), bytes); };
  }
  const cudaError_t error = enqueue(stream, std::move(copy));
  if (error == cudaSuccess && target == Place::pageable) std::memset(to, kPoison, bytes);
  return error;
}

cudaError_t queue_memset(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (place_of(to, bytes) != Place::device) return cudaErrorInvalidValue;
  return enqueue(stream, [=, index = current_device()] {
    require_device_memory(index, to, bytes, "memset");
    std::memset(to, value, bytes);
  });
}

cudaError_t allocate(void** pointer, std::size_t bytes) {
  if (pointer == nullptr) return cudaErrorInvalidValue;
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  DeviceMemory& memory = device(current_device()).memory;
  if (bytes > runtime().settings.memory - std::min(memory.allocated(), runtime().settings.memory))
    return cudaErrorMemoryAllocation;
  *pointer = memory.allocate(bytes);
  return *pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

}  // namespace

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return call("cudaMemGetInfo", Capturing::allowed, [&] {
    *total = settings().memory;
    *free = *total - std::min(*total, device(current_device()).memory.allocated());
  });
}

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  return call("cudaMalloc", Capturing::forbidden, [&] { return allocate(pointer, bytes); });
}

// (CUDA can capture this one and cudaFreeAsync, the emulator cannot.)
cudaError_t cudaMallocAsync(void** pointer, std::size_t bytes, cudaStream_t stream) {
  return call("cudaMallocAsync", Capturing::forbidden, [&] {
    return find_stream(stream) == nullptr ? cudaErrorInvalidResourceHandle : allocate(pointer, bytes);
  });
}

cudaError_t cudaFree(void* pointer) {
  return call_to_release("cudaFree", Capturing::forbidden, [&] {
    if (pointer == nullptr) return cudaSuccess;
    finish_device();
    for (auto& [index, device] : runtime().devices)
      if (device.memory.release(pointer)) return cudaSuccess;
    return cudaErrorInvalidValue;
  });
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  return call_to_release("cudaFreeAsync", Capturing::forbidden, [&] {
    if (pointer == nullptr) return cudaSuccess;
    DeviceMemory& memory = device(current_device()).memory;
    if (!memory.holds(pointer, 1)) return cudaErrorInvalidValue;
    if (device(current_device()).error != cudaSuccess)
      return memory.release(pointer) ? cudaSuccess : cudaErrorInvalidValue;
    return enqueue(stream, [&memory, pointer] {
      if (!memory.release(pointer))
        throw Fault{cudaErrorIllegalAddress, "[cudaFreeAsync] not the beginning of an allocation"};
    });
  });
}

cudaError_t cudaMallocHost(void** pointer, std::size_t bytes) {
  return call("cudaMallocHost", Capturing::forbidden, [&] {
    *pointer = bytes == 0 ? nullptr : std::aligned_alloc(kPage, rounded_up(bytes, kPage));
    if (bytes == 0) return cudaSuccess;
    if (*pointer == nullptr) return cudaErrorMemoryAllocation;
    std::memset(*pointer, kPoison, bytes);
    runtime().pinned[static_cast<unsigned char*>(*pointer)] = bytes;
    return cudaSuccess;
  });
}

cudaError_t cudaFreeHost(void* pointer) {
  return call_to_release("cudaFreeHost", Capturing::forbidden, [&] {
    if (pointer == nullptr) return cudaSuccess;
    finish_device();
    if (runtime().pinned.erase(static_cast<unsigned char*>(pointer)) == 0) return cudaErrorInvalidValue;
    std::free(pointer);
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return call("cudaMemcpyAsync", Capturing::allowed,
              [&] { return queue_copy(to, from, bytes, kind, stream); });
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return call("cudaMemcpy", Capturing::legacy, [&] {
    const cudaError_t error = queue_copy(to, from, bytes, kind, nullptr);
    if (error == cudaSuccess) wait_until([] { return run_until(device(current_device()).legacy); });
    return error;
  });
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return call("cudaMemsetAsync", Capturing::allowed, [&] { return queue_memset(to, value, bytes, stream); });
}

cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  return call("cudaMemset", Capturing::legacy, [&] { return queue_memset(to, value, bytes, nullptr); });
}
