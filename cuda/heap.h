// Heap: the memory of one GPU, given out and taken back in the order of its queue. CUDA's pool of the device keeps what was
// taken back for what is asked for next. Where a device has no pools (some virtual ones), the heap does so itself.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <map>
#include <unordered_map>
#include <vector>

#include "engine/core/device.h"

namespace nestgrad::cuda {

class Heap {
 public:
  // Of the thread's device. The stream is its queue, and lives longer.
  Heap(int device, cudaStream_t stream);
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // Null where it does not fit. At least one byte.
  std::byte* allocate(std::size_t bytes);
  void release(std::byte* address) noexcept;
  // What was taken back counts as free.
  Device::Memory memory() const;

 private:
  std::byte* allocate_kept(std::size_t bytes);
  void give_back_kept() noexcept;

  cudaStream_t stream_;
  cudaMemPool_t pool_ = nullptr;  // null: there are none, and all below is used
  std::unordered_map<std::byte*, std::size_t> sizes_;
  std::map<std::size_t, std::vector<std::byte*>> kept_;  // taken back, by size
  std::size_t kept_bytes_ = 0;
};

}  // namespace nestgrad::cuda
