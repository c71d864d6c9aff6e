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
  for (auto& [index, device] : runtime().devices)
    if (device.memory.holds(to, bytes) || device.memory.holds(from, bytes)) open.emplace_back(device.memory);
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
  // Into pageable memory: the call waits for what is before it.
  if (target == Place::pageable && source == Place::device && queue != nullptr)
    wait_until([&] { return run_until(*queue); });
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
    return cudaErrorMemoryAllocation;  // what a pool holds and nobody uses is given to others before that
  *pointer = memory.allocate(bytes);
  return *pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

// Of this memory, which is given back, the pool is told; of other memory it knows nothing.
void return_to_pool(CUmemPool_st& pool, const void* pointer) {
  const auto found = pool.used.find(pointer);
  if (found == pool.used.end()) return;
  pool.used_bytes -= found->second;
  pool.used.erase(found);
}

}  // namespace

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int index) {
  return call("cudaDeviceGetDefaultMemPool", Capturing::allowed, [&] {
    if (index < 0 || index >= settings().devices) return cudaErrorInvalidDevice;
    if (!settings().memory_pools) return cudaErrorNotSupported;
    *pool = &device(index).pool;
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return call("cudaMemPoolSetAttribute", Capturing::allowed, [&] {
    if (pool == nullptr || attribute != cudaMemPoolAttrReleaseThreshold) return cudaErrorInvalidValue;
    pool->release_threshold = *static_cast<std::uint64_t*>(value);
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return call("cudaMemPoolGetAttribute", Capturing::allowed, [&] {
    if (pool == nullptr) return cudaErrorInvalidValue;
    auto& out = *static_cast<std::uint64_t*>(value);
    if (attribute == cudaMemPoolAttrReleaseThreshold) out = pool->release_threshold;
    else if (attribute == cudaMemPoolAttrReservedMemCurrent) out = pool->reserved_bytes;
    else if (attribute == cudaMemPoolAttrUsedMemCurrent) out = pool->used_bytes;
    else return cudaErrorInvalidValue;
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return call("cudaMemGetInfo", Capturing::allowed, [&] {
    *total = settings().memory;
    const Device& here = device(current_device());
    const std::size_t unused = here.pool.reserved_bytes - here.pool.used_bytes;
    *free = *total - std::min(*total, here.memory.allocated() + unused);
  });
}

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  return call("cudaMalloc", Capturing::forbidden, [&] { return allocate(pointer, bytes); });
}

// (CUDA can capture this one and cudaFreeAsync, the emulator cannot.)
cudaError_t cudaMallocAsync(void** pointer, std::size_t bytes, cudaStream_t stream) {
  return call("cudaMallocAsync", Capturing::forbidden, [&] {
    if (!settings().memory_pools) return cudaErrorNotSupported;
    if (find_stream(stream) == nullptr) return cudaErrorInvalidResourceHandle;
    const cudaError_t error = allocate(pointer, bytes);
    if (error != cudaSuccess || bytes == 0) return error;
    CUmemPool_st& pool = device(current_device()).pool;
    pool.used.emplace(*pointer, bytes);
    pool.used_bytes += bytes;
    pool.reserve();
    return cudaSuccess;
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
    if (!settings().memory_pools) return cudaErrorNotSupported;
    DeviceMemory& memory = device(current_device()).memory;
    CUmemPool_st& pool = device(current_device()).pool;
    if (!memory.holds(pointer, 1)) return cudaErrorInvalidValue;
    if (device(current_device()).error != cudaSuccess) {
      return_to_pool(pool, pointer);
      return memory.release(pointer) ? cudaSuccess : cudaErrorInvalidValue;
    }
    return enqueue(stream, [&memory, &pool, pointer] {
      return_to_pool(pool, pointer);
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
