// The CUDA backend of one GPU: one stream, into which everything is queued, and one cuBLAS handle on it, made for the
// first product.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "cuda/check.h"
#include "cuda/fault.h"
#include "cuda/heap.h"
#include "engine/plan/backend.h"
#include "engine/processes/transport.h"

namespace nestgrad::cuda {

class CudaBackend;
class DeviceExchange;  // cuda/exchange.h

// What a kernel keeps in the memory of a device, filled when the kernel is made.
class DeviceTable {
 public:
  DeviceTable(CudaBackend& backend, const void* from, std::size_t bytes);
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  std::shared_ptr<std::byte> memory_;
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(int index);
  ~CudaBackend() override;
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  std::string name() const override;
  std::string description() const override;
  int index() const { return index_; }
  Device::Memory memory() const override;
  std::byte* allocate(std::size_t bytes) override;
  void release(std::byte* address) noexcept override;
  void upload(const std::byte* from, std::byte* to, std::size_t bytes) override;
  void download(const std::byte* from, std::byte* to, std::size_t bytes) override;
  void copy(const std::byte* from, std::byte* to, std::size_t bytes) override;
  void zero(std::byte* at, std::size_t bytes) override;
  void random(const RandomFill& fill, std::int64_t n, std::byte* to) override;  // cuda/random.cu
  void synchronize() override;
  bool has_kernel(const Op& op) const override { return op.cuda != nullptr; }
  WithScratch<OpKernel> kernel(const OpCall& call, Loc loc, const KernelOptions& options) override;
  WithScratch<ClusterKernel> cluster(const ClusterCall& call, const KernelOptions& options) override;
  Lowered suited(const Lowered& graph, const PlanOptions& options) const override;
  bool connect(std::span<const Attrs> collectives) override;
  std::string connections(std::span<const Attrs> collectives) const override;
  std::string why_op_by_op(const Graph& body,
                           std::int64_t slices) const override;  // this and the next: cuda/scan.cu
  LoopKernelOrReason loop_kernel(const ScanStep& scan, const Program& parent,
                                 const KernelOptions& options) override;
  RecordingOrReason record(const std::function<void()>& work, std::unique_ptr<Recording> over) override;
  bool waits_for_each() const override { return waits_for_each_; }

  cudaStream_t stream() const { return stream_; }
  cublasHandle_t
  blas();  // opens cuBLAS, and must not do so while work is recorded: for whoever makes a kernel
  // Dynamic shared memory that a block may have, in bytes.
  std::size_t shared_limit() const { return shared_limit_; }
  std::size_t multiprocessors() const { return multiprocessors_; }

  std::shared_ptr<std::byte> table(std::size_t bytes);  // memory for a DeviceTable

  // How the memory of this device gets to other processes: one for each group, which kernels keep.
  std::shared_ptr<DeviceExchange> exchange_with(int group, std::shared_ptr<Transport> processes);

  // For kernels that check what they are given: the number of a site, with which they report a wrong number;
  // and what is then said of it, with {} in its place. Only while a kernel is made.
  int fault_site(const OpCall& call, std::string what);
  Fault* faults() const { return faults_; }
  // Of the kernel that is being made: what is asked of it, that it needs scratch memory, and its text.
  const KernelOptions& options() const { return options_; }
  void need_scratch(std::size_t bytes) { scratch_bytes_ = bytes; }
  void show(std::string source) { source_ = std::move(source); }  // it was compiled for its shapes

 private:
  // Pinned memory through which uploads go, so that the host need not wait for them.
  struct Staging {
    std::byte* memory = nullptr;
    cudaEvent_t read = nullptr;  // since it was last full
  };
  static constexpr std::size_t kStagingBytes = std::size_t{4} << 20;
  static constexpr std::size_t kTableChunk = std::size_t{256} << 10;
  static constexpr std::size_t kWorkspaceBytes = std::size_t{32}
                                                 << 20;  // of cuBLAS, as it advises for Hopper

  std::shared_ptr<DeviceExchange> known_exchange(const Attrs& collective) const;  // null: none
  void use() const;  // makes this the device of the thread's calls
  std::vector<std::shared_ptr<DeviceExchange>> exchanges_in_queue() const;  // work in it may need others
  void wait();  // for the queue; where others have a part in it, no longer than they may be silent

  int index_;
  std::string model_;
  std::size_t shared_limit_ = 0, multiprocessors_ = 0;
  bool waits_for_each_ = false;
  std::string why_nothing_is_recorded_;  // empty: it is
  cudaStream_t stream_ = nullptr;
  std::optional<Heap> heap_;
  cublasHandle_t blas_ = nullptr;
  std::byte* workspace_ = nullptr;
  Staging staging_[2];
  int staging_now_ = 0;
  std::size_t staging_used_ = 0;       // bytes of it
  std::shared_ptr<std::byte> tables_;  // the chunk that is being filled
  std::size_t tables_used_ = 0;
  std::map<int, std::weak_ptr<DeviceExchange>> exchanges_;  // by the number of the group
  Fault* faults_ = nullptr;                                 // on the device
  Fault* seen_fault_ = nullptr;                             // pinned
  struct Site {
    const Op* op;
    std::string what;
    std::string where;     // the line
    std::string operands;  // what they are and where they came from
    bool operator==(const Site&) const = default;
  };
  std::vector<Site> sites_;
  Loc loc_{};  // of the kernel that is being made
  KernelOptions options_;
  std::size_t scratch_bytes_ = 0;
  std::string source_;
};

// The scratch memory of a kernel with so many inputs.
template <class T>
T* scratch_of(const std::byte* const* in, std::size_t inputs) {
  return reinterpret_cast<T*>(const_cast<std::byte*>(in[inputs]));
}

inline CudaBackend& cuda(Backend& backend) { return static_cast<CudaBackend&>(backend); }

constexpr std::size_t kPlainShared = 48 << 10;  // bytes of shared memory without asking for more

// May a kernel load and store from here 16 bytes at a time?
inline bool is_whole(const std::byte* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

struct Extent {
  std::int64_t blocks;
  unsigned threads;
  std::size_t shared = 0;  // bytes of dynamic shared memory
};

// Queues kernel<<<blocks, threads, shared>>>(arguments...). Nothing for no blocks.
template <class... P, class... A>
void launch(const CudaBackend& backend, const Extent& extent, void (*kernel)(P...), const A&... arguments) {
  if (extent.blocks == 0) return;
  std::tuple<P...> values{static_cast<P>(arguments)...};
  std::apply(
      [&](auto&... v) {
        void* at[] = {static_cast<void*>(&v)...};
        NESTGRAD_CUDA(cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(extent.blocks)),
                                       dim3(extent.threads), at, extent.shared, backend.stream()));
      },
      values);
}

// Blocks of `threads` that have a thread for each of n.
inline Extent for_each_of(std::int64_t n, unsigned threads = 256) {
  return {(n + threads - 1) / threads, threads};
}

// Opts in to more dynamic shared memory than a kernel has by default.
template <class... P>
void allow_shared(void (*kernel)(P...), std::size_t bytes) {
  NESTGRAD_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

}  // namespace nestgrad::cuda
