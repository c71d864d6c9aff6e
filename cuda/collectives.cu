// Collectives over processes: the kernels of ops/collective_kernels.h on the memory of a GPU.
#include "cuda/device.cuh"
#include "cuda/exchange.h"
#include "cuda/kernels.h"
#include "ops/attrs.h"
#include "ops/collective_kernels.h"

namespace nestgrad::cuda {

namespace {

template <class T>
__global__ void add_elements(T* to, const T* from, std::int64_t n) {
  const std::int64_t i = global_thread();
  if (i < n) to[i] += from[i];
}

class GpuMemory final : public CollectiveMemory {
 public:
  GpuMemory(CudaBackend& backend, std::shared_ptr<DeviceExchange> exchange, std::size_t scratch)
      : backend_(backend), exchange_(std::move(exchange)), scratch_(backend.table(scratch)) {}
  int rank() const override { return exchange_->processes().rank(); }
  int size() const override { return exchange_->processes().size(); }
  void exchange(std::span<const Transport::Send> out, std::span<const Transport::Receive> in) override {
    exchange_->exchange(out, in);
  }
  void copy(const std::byte* from, std::byte* to, std::size_t bytes) override {
    backend_.copy(from, to, bytes);
  }
  void zero(std::byte* at, std::size_t bytes) override { backend_.zero(at, bytes); }
  void add(DType dtype, std::byte* to, const std::byte* from, std::int64_t n) override {
    dispatch(dtype, [&]<class T>(T) {
      launch(backend_, for_each_of(n), add_elements<T>, reinterpret_cast<T*>(to),
             reinterpret_cast<const T*>(from), n);
    });
  }
  std::shared_ptr<std::byte> scratch(std::size_t) override { return scratch_; }

 private:
  CudaBackend& backend_;
  std::shared_ptr<DeviceExchange> exchange_;
  std::shared_ptr<std::byte> scratch_;
};

std::shared_ptr<CollectiveMemory> memory_of(const OpCall& call, Backend& backend, std::size_t scratch = 0) {
  CudaBackend& on = cuda(backend);
  return std::make_shared<GpuMemory>(
      on, on.exchange_with(call.attrs.as<GroupAttrs>().group, processes_of(call)), scratch);
}

}  // namespace

OpKernel all_sum_kernel(const OpCall& call, Backend& backend) {
  const std::shared_ptr<Transport> all = processes_of(call);
  const std::size_t scratch = all->size() > 1 ? all_sum_scratch(call, all->rank(), all->size()) : 0;
  return nestgrad::all_sum_kernel(call, memory_of(call, backend, scratch));
}
OpKernel exchange_kernel(const OpCall& call, Backend& backend) {
  return nestgrad::exchange_kernel(call, memory_of(call, backend));
}
OpKernel neighbour_kernel(const OpCall& call, Backend& backend) {
  return nestgrad::neighbour_kernel(call, memory_of(call, backend));
}

}  // namespace nestgrad::cuda
