#include "cuda/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "cuda/elements_source.h"
#include "cuda/exchange.h"
#include "cuda/kernels.h"
#include "cuda/loop_time.h"
#include "cuda/passes.h"
#include "engine/plan/passes.h"
#include "engine/plan/slicing.h"
#include "ops/attrs.h"

namespace nestgrad {

namespace cuda {

namespace {

[[noreturn]] void fail(const char* call, std::string_view why, SourceLocation at) {
  std::string_view file = at.file_name();
  file.remove_prefix(std::min(file.size(), file.rfind('/') + 1));
  throw DeviceError(fmt::format("[cuda] {}: {} (at {}:{})", call, why, file, at.line()));
}

// Is the variable 1? `unset`: what one is taken for that is not set.
bool is_one(const char* variable, bool unset = false) {
  const char* const value = std::getenv(variable);
  if (value == nullptr || *value == 0) return unset;
  const std::string_view text = value;
  if (text != "0" && text != "1") throw ConfigError(fmt::format("{} is '{}'; say 0 or 1", variable, text));
  return text == "1";
}

std::string mebibytes(std::size_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

void check(cudaError_t status, const char* call, SourceLocation at) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // what is not sticky shall not be reported again
  fail(call, fmt::format("{} ({})", cudaGetErrorString(status), cudaGetErrorName(status)), at);
}

void check(cublasStatus_t status, const char* call, SourceLocation at) {
  if (status != CUBLAS_STATUS_SUCCESS) fail(call, cublasGetStatusString(status), at);
}

DeviceTable::DeviceTable(CudaBackend& backend, const void* from, std::size_t bytes)
    : memory_(backend.table(bytes)) {
  backend.upload(static_cast<const std::byte*>(from), memory_.get(), bytes);
}

// Small ones share a chunk, which lives as long as one of them.
std::shared_ptr<std::byte> CudaBackend::table(std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;
  const auto own = [&](std::size_t size) {
    return std::shared_ptr<std::byte>(allocate(size), [this](std::byte* p) { release(p); });
  };
  if (bytes > kTableChunk / 4) return own(bytes);
  if (!tables_ || tables_used_ + bytes > kTableChunk) tables_ = own(kTableChunk), tables_used_ = 0;
  std::byte* const at = tables_.get() + tables_used_;
  tables_used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return {tables_, at};
}

CudaBackend::CudaBackend(int index) : index_(index), waits_for_each_(is_one("NESTGRAD_CUDA_SYNC")) {
  if (waits_for_each_) why_nothing_is_recorded_ = "NESTGRAD_CUDA_SYNC is 1";
  else if (!is_one("NESTGRAD_CUDA_GRAPH", true)) why_nothing_is_recorded_ = "NESTGRAD_CUDA_GRAPH is 0";
  use();
  cudaDeviceProp properties{};
  NESTGRAD_CUDA(cudaGetDeviceProperties(&properties, index));
  model_ = properties.name;
  if (const cudaError_t status = code_for_this_device(); status != cudaSuccess) {
    cudaGetLastError();
    throw DeviceError(fmt::format(
        "[cuda] this build has no code that {} can run, of compute capability {}.{} ({}); build for it with "
        "-DNESTGRAD_CUDA_ARCHITECTURES={}{}, or, if the toolkit is newer than the driver, install a newer driver",
        description(), properties.major, properties.minor, cudaGetErrorName(status), properties.major,
        properties.minor));
  }
  shared_limit_ = properties.sharedMemPerBlockOptin;
  multiprocessors_ = static_cast<std::size_t>(properties.multiProcessorCount);
  NESTGRAD_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  heap_.emplace(index, stream_);
  for (Staging& s : staging_) {
    NESTGRAD_CUDA(cudaMallocHost(reinterpret_cast<void**>(&s.memory), kStagingBytes));
    NESTGRAD_CUDA(cudaEventCreateWithFlags(&s.read, cudaEventDisableTiming));
  }
  NESTGRAD_CUDA(cudaMallocHost(reinterpret_cast<void**>(&seen_fault_), sizeof(Fault)));
  NESTGRAD_CUDA(cudaMalloc(reinterpret_cast<void**>(&faults_), sizeof(Fault)));
  zero(reinterpret_cast<std::byte*>(faults_), sizeof(Fault));
}

// What fails while the device goes away has nobody to be told.
CudaBackend::~CudaBackend() {
  tables_.reset();
  static_cast<void>(cudaSetDevice(index_));
  static_cast<void>(cudaStreamSynchronize(stream_));
  if (blas_) static_cast<void>(cublasDestroy(blas_));
  for (Staging& s : staging_) {
    static_cast<void>(cudaEventDestroy(s.read));
    static_cast<void>(cudaFreeHost(s.memory));
  }
  static_cast<void>(cudaFreeHost(seen_fault_));
  static_cast<void>(cudaFree(faults_));
  if (workspace_) release(workspace_);
  heap_.reset();
  static_cast<void>(cudaStreamDestroy(stream_));
}

// The stream first, since setting it takes the workspace away.
cublasHandle_t CudaBackend::blas() {
  if (blas_) return blas_;
  use();
  cublasHandle_t handle = nullptr;
  NESTGRAD_CUDA(cublasCreate(&handle));
  try {
    NESTGRAD_CUDA(cublasSetStream(handle, stream_));
    if (!workspace_) workspace_ = allocate(kWorkspaceBytes);
    NESTGRAD_CUDA(cublasSetWorkspace(handle, workspace_, kWorkspaceBytes));
  } catch (...) {
    static_cast<void>(cublasDestroy(handle));
    throw;
  }
  return blas_ = handle;
}

void CudaBackend::use() const { NESTGRAD_CUDA(cudaSetDevice(index_)); }

std::string CudaBackend::name() const { return fmt::format("cuda:{}", index_); }
std::string CudaBackend::description() const { return fmt::format("{} ({})", name(), model_); }

Device::Memory CudaBackend::memory() const {
  use();
  return heap_->memory();
}

std::byte* CudaBackend::allocate(std::size_t bytes) {
  use();
  if (std::byte* const address = heap_->allocate(bytes)) return address;
  const Device::Memory now = memory();
  throw DeviceError(
      fmt::format("[cuda] {} of memory were asked for on {}, {} of {} are free; make the batch or the "
                  "context smaller, or "
                  "give the plan a memory budget",
                  mebibytes(bytes), description(), mebibytes(now.free), mebibytes(now.total)));
}

void CudaBackend::release(std::byte* address) noexcept {
  static_cast<void>(cudaSetDevice(index_));
  heap_->release(address);
}

void CudaBackend::upload(const std::byte* from, std::byte* to, std::size_t bytes) {
  use();
  for (std::size_t done = 0; done < bytes;) {
    if (staging_used_ == kStagingBytes) {  // on to the other buffer, once it has been read
      NESTGRAD_CUDA(cudaEventRecord(staging_[staging_now_].read, stream_));
      staging_now_ = 1 - staging_now_;
      staging_used_ = 0;
      if (exchanges_in_queue().empty()) NESTGRAD_CUDA(cudaEventSynchronize(staging_[staging_now_].read));
      else wait();
    }
    const std::size_t n = std::min(kStagingBytes - staging_used_, bytes - done);
    std::byte* const place = staging_[staging_now_].memory + staging_used_;
    std::memcpy(place, from + done, n);
    NESTGRAD_CUDA(cudaMemcpyAsync(to + done, place, n, cudaMemcpyHostToDevice, stream_));
    done += n, staging_used_ += n;
  }
}

void CudaBackend::download(const std::byte* from, std::byte* to, std::size_t bytes) {
  use();
  // Such a copy holds the thread until all before it is done: exchanges that others may never end are waited for first.
  if (!exchanges_in_queue().empty()) wait();
  if (bytes > 0) NESTGRAD_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_));
  synchronize();
}

void CudaBackend::copy(const std::byte* from, std::byte* to, std::size_t bytes) {
  use();
  if (bytes > 0) NESTGRAD_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_));
}

void CudaBackend::zero(std::byte* at, std::size_t bytes) {
  use();
  if (bytes > 0) NESTGRAD_CUDA(cudaMemsetAsync(at, 0, bytes, stream_));
}

void CudaBackend::synchronize() {
  use();
  NESTGRAD_CUDA(cudaMemcpyAsync(seen_fault_, faults_, sizeof(Fault), cudaMemcpyDeviceToHost, stream_));
  wait();
  if (seen_fault_->site == 0) return;
  const Fault found = *seen_fault_;
  zero(reinterpret_cast<std::byte*>(faults_), sizeof(Fault));
  const Site& site = sites_[static_cast<std::size_t>(found.site - 1)];
  const std::string value = found.kind == Fault::Kind::index ? std::to_string(found.index)
                            : found.kind == Fault::Kind::f32
                                ? fmt::format("{}", static_cast<double>(found.f32))
                                : fmt::format("{}", found.f64);
  throw ValueError(fmt::format("[{}] {} (at {}; {})", site.op->name,
                               fmt::format(fmt::runtime(site.what), value), site.where, site.operands));
}

std::shared_ptr<DeviceExchange> CudaBackend::exchange_with(int group, std::shared_ptr<Transport> processes) {
  std::erase_if(exchanges_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<DeviceExchange>& known = exchanges_[group];
  std::shared_ptr<DeviceExchange> out = known.lock();
  if (!out) known = out = std::make_shared<DeviceExchange>(*this, std::move(processes));
  return out;
}

// The kernels that go over the group keep it.
std::shared_ptr<DeviceExchange> CudaBackend::known_exchange(const Attrs& collective) const {
  const auto found = exchanges_.find(collective.as<GroupAttrs>().group);
  return found == exchanges_.end() ? nullptr : found->second.lock();
}

namespace {

// The bodies, of one slice, of the scans of a few graphs: each is made once.
class SlicedBodies {
 public:
  // Nothing, if the scan is not cut.
  const std::optional<SlicedBody>& of(const Lowered& lowered, NodeId scan) {
    OfGraph& known = graphs_[lowered.graph];
    if (known.readers.empty()) {
      const std::vector<char> live = live_nodes(lowered.graph->nodes(), lowered.outputs, lowered.inputs);
      known.readers = readers_of(*lowered.graph, live, lowered.outputs);
    }
    const auto [found, is_new] = known.bodies.try_emplace(scan);
    if (is_new) found->second = slice_scan(*lowered.graph, known.readers, scan);
    return found->second;
  }

 private:
  struct OfGraph {
    Readers readers;
    std::map<NodeId, std::optional<SlicedBody>> bodies;
  };
  std::map<std::shared_ptr<Graph>, OfGraph> graphs_;
};

}  // namespace

Lowered CudaBackend::suited(const Lowered& graph, const PlanOptions& options) const {
  SlicedBodies bodies;
  const auto is_sliced = [&](const Lowered& of, NodeId scan) {
    if (!options.slice) return false;
    const auto& body = bodies.of(of, scan);
    return body && why_op_by_op(*body->graph, body->slices()).empty();
  };
  const auto is_one_kernel = [&](const Lowered& of, NodeId scan) {
    if (!is_sliced(of, scan)) return false;
    const Graph& body = *bodies.of(of, scan)->graph;
    return !is_elementwise(body) && least_shared_memory(body) <= shared_limit();
  };
  Lowered out = inline_single_steps(graph, is_one_kernel, options.checkpoint_every);
  const bool has_regions = out.graph != graph.graph;
  out = reduce_rows_first(permute_late(compute_after_steps(out), is_sliced));
  return has_regions ? recompute_regions(out) : out;
}

bool CudaBackend::connect(std::span<const Attrs> collectives) {
  use();
  bool recordable = true;
  for (const Attrs& attrs : collectives)
    if (const std::shared_ptr<DeviceExchange> exchange = known_exchange(attrs))
      recordable = exchange->connect() && recordable;
  return recordable;
}

std::string CudaBackend::connections(std::span<const Attrs> collectives) const {
  std::string out;
  for (const Attrs& attrs : collectives)
    if (const std::shared_ptr<DeviceExchange> exchange = known_exchange(attrs))
      out += exchange->description();
  return out;
}

std::vector<std::shared_ptr<DeviceExchange>> CudaBackend::exchanges_in_queue() const {
  std::vector<std::shared_ptr<DeviceExchange>> out;
  for (const auto& [group, known] : exchanges_)
    if (std::shared_ptr<DeviceExchange> exchange = known.lock(); exchange && exchange->waits_on_device())
      out.push_back(std::move(exchange));
  return out;
}

void CudaBackend::wait() {
  const std::vector<std::shared_ptr<DeviceExchange>> exchanges = exchanges_in_queue();
  if (exchanges.empty()) return NESTGRAD_CUDA(cudaStreamSynchronize(stream_));
  const auto begin = std::chrono::steady_clock::now();
  for (cudaError_t now; (now = cudaStreamQuery(stream_)) != cudaSuccess;) {
    if (now != cudaErrorNotReady) NESTGRAD_CUDA(now);
    const auto waited = std::chrono::steady_clock::now() - begin;
    for (const auto& exchange : exchanges) {
      const std::string problem = exchange->problem(waited);
      if (problem.empty()) continue;
      // Ends what waits on the device for others, so that it can be waited for.
      for (const auto& each : exchanges) each->end(problem);
      static_cast<void>(cudaStreamSynchronize(stream_));
      throw ProcessError(problem);
    }
    if (waited > std::chrono::milliseconds(2)) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

int CudaBackend::fault_site(const OpCall& call, std::string what) {
  Site site{&call.op, std::move(what), describe(loc_), call.operands()};
  const auto known = std::ranges::find(sites_, site);  // the same step of a plan that is made again
  if (known != sites_.end()) return static_cast<int>(known - sites_.begin()) + 1;
  sites_.push_back(std::move(site));
  return static_cast<int>(sites_.size());
}

WithScratch<OpKernel> CudaBackend::kernel(const OpCall& call, Loc loc, const KernelOptions& options) {
  use();
  if (!call.op.cuda)
    throw GraphError(fmt::format("[{}] this op has no kernel for CUDA, and was not expanded (at {})",
                                 call.op.name, describe(loc)));
  loc_ = loc;
  options_ = options;
  scratch_bytes_ = 0;
  source_.clear();
  OpKernel run = call.op.cuda(call, *this);
  return {std::move(run), scratch_bytes_, std::move(source_)};
}

namespace {

class Graph final : public Backend::Recording {
 public:
  Graph(int device, cudaStream_t stream) : device_(device), stream_(stream) {}
  ~Graph() override {
    if (executable_) static_cast<void>(cudaGraphExecDestroy(executable_));
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Another graph instead of this one's, as a change of it if that is one.
  cudaError_t take(cudaGraph_t graph) {
    const cudaError_t counted = cudaGraphGetNodes(graph, nullptr, &pieces_);
    if (counted != cudaSuccess) return counted;
    if (executable_) {
      cudaGraphExecUpdateResultInfo result{};
      was_changed_ = cudaGraphExecUpdate(executable_, graph, &result) == cudaSuccess;
      if (was_changed_) return cudaSuccess;
      static_cast<void>(cudaGetLastError());
      static_cast<void>(cudaGraphExecDestroy(executable_));
      executable_ = nullptr;
    }
    return cudaGraphInstantiate(&executable_, graph, 0);
  }

  void replay() override {
    NESTGRAD_CUDA(cudaSetDevice(device_));
    NESTGRAD_CUDA(cudaGraphLaunch(executable_, stream_));
  }
  std::size_t pieces() const override { return pieces_; }
  bool was_changed() const override { return was_changed_; }

 private:
  int device_;
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
  std::size_t pieces_ = 0;
  bool was_changed_ = false;
};

// Of what a capture may end in although nothing is wrong but that it was one.
bool is_refusal(cudaError_t status) {
  return status == cudaErrorNotSupported ||
         (status >= cudaErrorStreamCaptureUnsupported && status <= cudaErrorStreamCaptureImplicit);
}

}  // namespace

Backend::RecordingOrReason CudaBackend::record(const std::function<void()>& work,
                                               std::unique_ptr<Recording> over) {
  if (!why_nothing_is_recorded_.empty()) return {nullptr, why_nothing_is_recorded_};
  use();
  const auto refused = [](cudaError_t status) -> RecordingOrReason {
    static_cast<void>(cudaGetLastError());
    return {nullptr, fmt::format("{} ({})", cudaGetErrorString(status), cudaGetErrorName(status))};
  };
  cudaError_t status = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
  if (is_refusal(status)) return refused(status);
  NESTGRAD_CUDA(status);
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    status = cudaStreamEndCapture(stream_, &graph);
    if (graph) static_cast<void>(cudaGraphDestroy(graph));
    if (is_refusal(status)) return refused(status);
    static_cast<void>(cudaGetLastError());
    throw;
  }
  status = cudaStreamEndCapture(stream_, &graph);
  if (is_refusal(status)) return refused(status);
  NESTGRAD_CUDA(status);
  auto out = over ? std::unique_ptr<Graph>(static_cast<Graph*>(over.release()))
                  : std::make_unique<Graph>(index_, stream_);
  status = out->take(graph);
  static_cast<void>(cudaGraphDestroy(graph));
  // Where its instance does not fit into memory, runs still may.
  if (is_refusal(status) || status == cudaErrorMemoryAllocation) return refused(status);
  NESTGRAD_CUDA(status);
  return {std::move(out), {}};
}

}  // namespace cuda

// One backend for each device, until the process ends: its arrays may be passed from plan to plan.
std::shared_ptr<DeviceMemory> cuda_device_memory(int index) {
  static std::mutex mutex;
  static auto& known = *new std::map<int, std::shared_ptr<Backend>>;  // outlives whatever uses CUDA at exit
  const std::lock_guard lock(mutex);
  std::shared_ptr<Backend>& backend = known[index];
  if (!backend) {
    cuda::fill_in_kernels();
    backend = std::make_shared<cuda::CudaBackend>(index);
  }
  return backend;
}

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  static_cast<void>(cudaGetLastError());
  return 0;
}

std::string why_no_cuda_device() {
  int count = 0, driver = 0, runtime = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  if (status == cudaSuccess) return count == 0 ? "this machine has no NVIDIA GPU" : "";
  static_cast<void>(cudaDriverGetVersion(&driver));
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  const auto version = [](int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); };
  if (status == cudaErrorInsufficientDriver && driver > 0)
    return fmt::format("the NVIDIA driver is for CUDA {}, this build needs CUDA {}; install a newer driver",
                       version(driver), version(runtime));
  if (status == cudaErrorInsufficientDriver || status == cudaErrorNoDevice)
    return "this machine has no NVIDIA GPU, or no driver for it";
  return fmt::format("CUDA does not start: {}", cudaGetErrorString(status));
}

}  // namespace nestgrad
