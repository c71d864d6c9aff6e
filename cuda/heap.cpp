#include "cuda/heap.h"

#include <algorithm>
#include <cstdint>
#include <new>

#include "cuda/check.h"

namespace nestgrad::cuda {

namespace {

constexpr std::size_t kGranule = 512;  // sizes are multiples of it, so that more of them are equal

}  // namespace

Heap::Heap(int device, cudaStream_t stream) : stream_(stream) {
  int pools = 0;
  NESTGRAD_CUDA(cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, device));
  if (pools == 0) return;
  NESTGRAD_CUDA(cudaDeviceGetDefaultMemPool(&pool_, device));
  // Else each wait gives to the driver what is free, and what is asked for next is slow and lies elsewhere.
  std::uint64_t keep = ~std::uint64_t{0};
  NESTGRAD_CUDA(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep));
}

Heap::~Heap() { give_back_kept(); }

std::byte* Heap::allocate(std::size_t bytes) {
  bytes = std::max<std::size_t>(bytes, 1);
  if (!pool_) return allocate_kept((bytes + kGranule - 1) / kGranule * kGranule);
  void* address = nullptr;
  const cudaError_t status = cudaMallocAsync(&address, bytes, stream_);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  NESTGRAD_CUDA(status);
  return static_cast<std::byte*>(address);
}

// What was taken back may still be used by work in the queue: that of the new owner comes after it.
std::byte* Heap::allocate_kept(std::size_t bytes) {
  std::byte* out = nullptr;
  if (const auto found = kept_.find(bytes); found != kept_.end()) {
    out = found->second.back();
    found->second.pop_back();
    if (found->second.empty()) kept_.erase(found);
    kept_bytes_ -= bytes;
  } else {
    void* address = nullptr;
    cudaError_t status = cudaMalloc(&address, bytes);
    if (status == cudaErrorMemoryAllocation && kept_bytes_ > 0) {
      cudaGetLastError();
      give_back_kept();
      status = cudaMalloc(&address, bytes);
    }
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    NESTGRAD_CUDA(status);
    out = static_cast<std::byte*>(address);
  }
  sizes_.emplace(out, bytes);
  return out;
}

void Heap::release(std::byte* address) noexcept {
  if (pool_) {
    static_cast<void>(cudaFreeAsync(address, stream_));
    return;
  }
  const auto found = sizes_.find(address);
  if (found == sizes_.end()) return;
  const std::size_t bytes = found->second;
  sizes_.erase(found);
  try {
    kept_[bytes].push_back(address);
    kept_bytes_ += bytes;
  } catch (const std::bad_alloc&) {  // of the host
    static_cast<void>(cudaFree(address));
  }
}

void Heap::give_back_kept() noexcept {
  for (const auto& [bytes, addresses] : kept_)
    for (std::byte* address : addresses) static_cast<void>(cudaFree(address));
  kept_.clear();
  kept_bytes_ = 0;
}

Device::Memory Heap::memory() const {
  Device::Memory out;
  NESTGRAD_CUDA(cudaMemGetInfo(&out.free, &out.total));
  if (!pool_) {
    out.free += kept_bytes_;
    return out;
  }
  std::uint64_t reserved = 0, used = 0;
  NESTGRAD_CUDA(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &reserved));
  NESTGRAD_CUDA(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrUsedMemCurrent, &used));
  out.free += static_cast<std::size_t>(reserved - used);
  return out;
}

}  // namespace nestgrad::cuda
