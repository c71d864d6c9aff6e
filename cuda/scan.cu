// A scan over independent slices as one kernel: a block of threads takes a slice through all its steps, op
// after op, with the slice's state in shared memory where it fits. The composite is the same scan without
// slices, op by op. Which scans: those whose every op ScanWriter can write. With checkpoints through time the
// kernel runs once for each segment, and once more where a segment is recomputed.
#include <algorithm>
#include <optional>

#include "cuda/backend.h"
#include "cuda/scan_block.cuh"
#include "cuda/scan_writer.cuh"
#include "engine/plan/program.h"

namespace nestgrad::cuda {

namespace {

constexpr unsigned kThreads = 256;

struct BaseOf {
  std::byte* memory;  // of the slice
  const Bases& bases;
  NESTGRAD_HOST_DEVICE std::byte* operator()(int number) const {
    return number == 0 ? memory : bases.at[number];
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    scan(const ScanText* text_at, Bases bases, Stretch steps, std::byte* spilled) {
  NESTGRAD_SHARED(std::byte*, table);  // externals, then what the carries are now; then the slice's memory
  const ScanText& text = *text_at;
  const StepTableView& t = text.table;
  const int inputs = t.carries + t.xs + t.constants;
  std::byte** const external = table;
  std::byte** const carried = table + kMostExternals;
  const std::int64_t s = blockIdx.x;
  std::byte* const memory =
      spilled ? spilled + s * text.memory_bytes : reinterpret_cast<std::byte*>(table + 2 * kMostExternals);
  const StepAddresses<BaseOf> addresses(t, s, {memory, bases});
  const SliceMemory<T> where{memory, external};
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);

  for (int c = 0; c < t.carries; ++c) {
    const StepCarry& carry = t.carry[c];
    const std::int64_t n = carry.part.bytes / static_cast<std::int64_t>(sizeof(T));
    T* begin = reinterpret_cast<T*>(addresses.begin(carry, steps));
    if (addresses.begins_with_zeros(carry, steps))
      for (std::int64_t i = thread; i < n; i += threads) begin[i] = T(0);
    if (addresses.keeps(carry, steps)) {
      T* to = reinterpret_cast<T*>(addresses.at(t.stack[carry.stack], steps.first));
      for (std::int64_t i = thread; i < n; i += threads) to[i] = begin[i];
    }
    if (thread == 0) carried[c] = reinterpret_cast<std::byte*>(begin);
  }
  for (int i = 0; i < steps.count; ++i) {
    const int time = t.reverse ? steps.first - i : steps.first + i;
    __syncthreads();
    for (int k = thread; k < t.carries; k += threads) {
      external[k] = carried[k];
      carried[k] = external[inputs + k] = addresses.next(t.carry[k], steps, i, time);
    }
    for (int k = thread; k < t.xs; k += threads) external[t.carries + k] = addresses.at(t.x[k], time);
    for (int k = thread; k < t.constants; k += threads)
      external[t.carries + t.xs + k] = addresses.at(t.constant[k], time);
    if (thread == 0)
      for (int k = 0, out = inputs + t.carries; k < t.stacks; ++k)
        if (!t.stack[k].of_carry) external[out++] = addresses.written(t.stack[k], steps, time);
    __syncthreads();
    for (int o = 0; o < text.ops; ++o) {
      run_op(text.op[o], where, reinterpret_cast<T*>(memory + text.scratch_at));
      __syncthreads();
    }
  }
}

// Last values of which the slices have terms, added up in the order of the slices.
template <class T>
__global__ void add_terms(const ScanText* text, int carry, const T* terms, std::byte* sum) {
  const StepTableView& t = text->table;
  const StepPart part = t.carry[carry].part;
  const std::int64_t i = global_thread(), n = part.bytes / static_cast<std::int64_t>(sizeof(T));
  if (i >= n) return;
  for (std::int64_t s = 0; s < t.slices; ++s) {
    T* to = reinterpret_cast<T*>(sum + t.offsets[part.at + s]) + i;
    *to = t.owners[part.at + s] ? terms[s * n + i] : *to + terms[s * n + i];
  }
}

template <class T>
class ScanKernel final : public LoopKernel {
 public:
  ScanKernel(const ScanStep& step, const Program& parent, CudaBackend& backend)
      : backend_(backend), bases_(step.table.bases.size()), carries_(step.table.carries) {
    const ScanWriter<T> writer(step, parent, backend, tables_);
    suits_ = writer.suits();
    if (!suits_) return;
    tables_.emplace_back(backend, &writer.text(), sizeof(ScanText));
    const std::size_t table = 2 * kMostExternals * sizeof(std::byte*),
                      memory = static_cast<std::size_t>(writer.text().memory_bytes);
    extent_ = {step.table.slices, kThreads, table + memory};
    if (extent_.shared > backend.shared_limit()) {
      extent_.shared = table;
      spilled_.emplace(backend, memory * static_cast<std::size_t>(step.table.slices));
    }
    if (extent_.shared > kPlainShared) allow_shared(scan<T>, backend.shared_limit());
  }

  bool suits() const { return suits_; }
  void run(std::byte* const* at, const Stretch& steps) override {
    Bases bases{};
    std::copy_n(at, bases_, bases.at);
    const auto* text = tables_.back().template as<ScanText>();
    launch(backend_, extent_, scan<T>, text, bases, steps, spilled_ ? spilled_->as<std::byte>() : nullptr);
    for (int k = 0; k < static_cast<int>(carries_.size()); ++k) {
      const StepCarry& c = carries_[static_cast<std::size_t>(k)];
      if (c.terms < 0 || !steps.last) continue;
      launch(backend_, for_each_of(c.part.bytes / static_cast<std::int64_t>(sizeof(T))), add_terms<T>, text,
             k, reinterpret_cast<const T*>(at[c.terms]), at[c.final_value]);
    }
  }
  std::string describe() const override {
    return "one kernel, " + std::to_string(extent_.shared) + " bytes of shared memory a slice" +
           (spilled_ ? ", its state outside of it" : "");
  }

 private:
  CudaBackend& backend_;
  bool suits_ = false;  // if not, there is nothing to run
  std::size_t bases_;
  std::vector<StepCarry> carries_;
  Extent extent_{};
  std::vector<DeviceTable> tables_;  // the scan's text last
  std::optional<DeviceTable> spilled_;
};

bool runs_in_block(const Op& op) {
  if (op.kind == OpKind::input || op.kind == OpKind::constant || op.is_alias) return true;
  if (op.kind != OpKind::value) return false;
  return op.element_loop || op.view || op.expand || ScanWriter<float>::written(op);
}

template <class T>
std::unique_ptr<LoopKernel> scan_kernel(const ScanStep& step, const Program& parent, CudaBackend& backend) {
  auto kernel = std::make_unique<ScanKernel<T>>(step, parent, backend);
  if (!kernel->suits()) return nullptr;
  return kernel;
}

}  // namespace

bool CudaBackend::suits_loop_kernel(const Graph& body) {
  const DType dtype = body.node(0).spec.dtype;
  for (const GraphNode& n : body.nodes())
    if (n.spec.dtype != dtype || !runs_in_block(*n.op)) return false;
  return is_float(dtype);
}

std::unique_ptr<LoopKernel> CudaBackend::loop_kernel(const ScanStep& step, const Program& parent) {
  use();
  const bool is_f32 = step.workers[0].body.graph->node(0).spec.dtype == DType::f32;
  return is_f32 ? scan_kernel<float>(step, parent, *this) : scan_kernel<double>(step, parent, *this);
}

}  // namespace nestgrad::cuda
