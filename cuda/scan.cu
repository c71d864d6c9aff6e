// A scan over independent slices as one kernel: a block of threads takes a slice through all its steps, op
// after op, with what the slice needs in shared memory. The composite is the same scan without slices, op by op.
// Which scans: those whose every op ScanWriter can write, whose slices fit into shared memory, and that do not
// take much longer so than op by op (cuda/loop_time.h). With checkpoints through time the kernel runs once for
// each segment, and once more where a segment is recomputed.
#include <algorithm>
#include <optional>
#include <utility>

#include "cuda/backend.h"
#include "cuda/elements_source.h"
#include "cuda/kernel_maker.h"
#include "cuda/loop_table.h"
#include "cuda/loop_time.h"
#include "cuda/scan_block.cuh"
#include "cuda/scan_source.h"
#include "cuda/scan_steps.cuh"
#include "cuda/scan_writer.cuh"
#include "engine/plan/program.h"

namespace nestgrad::cuda {

namespace {

template <class T>
__global__ void __launch_bounds__(kScanThreads, 1) scan(const ScanText* text_at, Bases bases, Stretch steps) {
  const ScanText& text = *text_at;
  run_steps<T>(text.table, bases, steps, [&](std::byte* memory, std::byte* const* external) {
    const SliceMemory<T> where{memory, external};
    for (int o = 0; o < text.ops; ++o) {
      run_op(text.op[o], where, reinterpret_cast<T*>(memory + text.scratch_at));
      __syncthreads();
    }
  });
}

// Last values of which the slices have terms, added up in the order of the slices: by as many blocks for each slice, of which those
// of the slices that own a place have something to do.
template <class T>
__global__ void add_terms(const ScanText* text, int carry, const T* terms, std::byte* sum) {
  const StepTableView& t = text->table;
  const StepPart part = t.carry[carry].part;
  const unsigned blocks = gridDim.x / static_cast<unsigned>(t.slices);
  const std::int64_t owner = blockIdx.x / blocks, n = part.bytes / static_cast<std::int64_t>(sizeof(T)),
                     i = static_cast<std::int64_t>(blockIdx.x % blocks) * blockDim.x + threadIdx.x;
  if (i >= n || !t.owners[part.at + owner]) return;
  const std::int64_t at = t.offsets[part.at + owner];
  T total = terms[owner * n + i];
  for (std::int64_t s = owner + 1; s < t.slices; ++s)
    if (t.offsets[part.at + s] == at) total = total + terms[s * n + i];
  reinterpret_cast<T*>(sum + at)[i] = total;
}

// A kernel that was written for the scan (cuda/scan_source.h). Its last argument: addresses of the body's literals.
using OwnScan = void (*)(const StepTableView* table, Bases bases, Stretch steps,
                         const std::byte* const* literals);

template <class T>
class ScanKernel final : public LoopKernel {
 public:
  ScanKernel(const ScanStep& step, const Program& parent, CudaBackend& backend, const KernelOptions& options)
      : backend_(backend), bases_(step.table.bases.size()), carries_(step.table.carries) {
    const ScanWriter<T> writer(step, parent, backend, tables_);
    if (!writer.suits()) {
      why_not_ = "the kernel of scans cannot write it";
      return;
    }
    const std::size_t table = static_cast<std::size_t>(scan_table_bytes(writer.text().table)),
                      memory = static_cast<std::size_t>(writer.text().memory_bytes);
    // What no schedule decides, so that none has other bits: a scan that keeps its stacks needs room for a step of each.
    std::size_t most = table + memory;
    for (const StepValue& s : step.table.stacks)
      if (s.window) most += static_cast<std::size_t>(s.part.bytes);
    if (most > backend.shared_limit()) {
      why_not_ = "a slice needs " + std::to_string(most) +
                 " bytes of shared memory, a block of threads has " + std::to_string(backend.shared_limit());
      return;
    }
    tables_.emplace_back(backend, &writer.text(), sizeof(ScanText));
    extent_ = {step.table.slices, kScanThreads, table + memory};
    if (extent_.shared > kPlainShared) allow_shared(scan<T>, backend.shared_limit());
    if (options.compile != Compile::never) make_own(step, table, options.precision);
  }

  const std::string& why_not() const { return why_not_; }  // empty: it may run
  void run(std::byte* const* at, const Stretch& steps) override {
    Bases bases{};
    std::copy_n(at, bases_, bases.at);
    const auto* text = tables_.back().template as<ScanText>();
    // Its vectors begin at multiples of 16 bytes. A step of another loop need not, whose values are not that even.
    if (own_ && all_whole(at + 1, at + bases_))
      launch(backend_, own_extent_, own_, &text->table, bases, steps,
             literals_->template as<const std::byte*>());
    else launch(backend_, extent_, scan<T>, text, bases, steps);
    for (int k = 0; k < static_cast<int>(carries_.size()); ++k) {
      const StepCarry& c = carries_[static_cast<std::size_t>(k)];
      if (c.terms < 0 || !steps.last) continue;
      Extent extent = for_each_of(c.part.bytes / static_cast<std::int64_t>(sizeof(T)));
      extent.blocks *= extent_.blocks;
      launch(backend_, extent, add_terms<T>, text, k, reinterpret_cast<const T*>(at[c.terms]),
             at[c.final_value]);
    }
  }
  std::string describe() const override {
    const std::size_t shared = own_ ? own_extent_.shared : extent_.shared;
    return std::string("one kernel, ") + (own_ ? "compiled for it, " : "") + std::to_string(shared) +
           " bytes of shared memory a slice" + (why_not_own_.empty() ? "" : ", interpreted: " + why_not_own_);
  }
  std::string source() const override { return own_ ? source_ : ""; }

 private:
  void make_own(const ScanStep& step, std::size_t table_bytes, Precision precision) {
    ScanSource source = scan_source(step, precision, backend_.shared_limit() - table_bytes);
    if (source.text.empty()) {
      why_not_own_ = "something in it has no text";
      return;
    }
    const MadeKernel made = make_kernel(source.text, kScanFunction, backend_.index());
    why_not_own_ = made.why_not;
    if (!made.function) return;
    own_ = reinterpret_cast<OwnScan>(const_cast<void*>(made.function));
    source_ = std::move(source.text);
    own_extent_ = {step.table.slices, kScanThreads, table_bytes + source.memory_bytes};
    if (own_extent_.shared > kPlainShared) allow_shared(own_, backend_.shared_limit());
    literals_ = literal_addresses(step, backend_);
  }

  CudaBackend& backend_;
  std::string why_not_;
  std::size_t bases_;
  std::vector<StepCarry> carries_;
  Extent extent_{};
  std::vector<DeviceTable> tables_;  // the scan's text last
  OwnScan own_ = nullptr;            // null: the scan is interpreted
  Extent own_extent_{};
  std::string source_, why_not_own_;
  std::optional<DeviceTable> literals_;
};

bool runs_in_block(const Op& op) {
  if (op.kind == OpKind::input || op.kind == OpKind::constant || op.is_alias) return true;
  if (op.kind != OpKind::value) return false;
  return op.element_loop || op.view || op.expand || ScanWriter<float>::written(op);
}

template <class T>
LoopKernelOrReason scan_kernel(const ScanStep& step, const Program& parent, CudaBackend& backend,
                               const KernelOptions& options) {
  auto kernel = std::make_unique<ScanKernel<T>>(step, parent, backend, options);
  if (const std::string why = kernel->why_not(); !why.empty()) return {nullptr, why};
  return {std::move(kernel), {}};
}

}  // namespace

std::string CudaBackend::why_op_by_op(const Graph& body, std::int64_t slices) const {
  const DType dtype = body.node(0).spec.dtype;
  if (!is_float(dtype)) return "it begins with integers";
  for (const GraphNode& n : body.nodes()) {
    if (n.spec.dtype != dtype) return "its values have several types";
    if (!runs_in_block(*n.op)) return "the kernel of scans has no " + std::string(n.op->name);
  }
  // A scan of elementwise ops has a kernel of another kind, where kernels are compiled: loop_kernel() sees.
  return is_elementwise(body) ? "" : why_slow_in_kernel(step_time(body, slices, multiprocessors_));
}

LoopKernelOrReason CudaBackend::loop_kernel(const ScanStep& step, const Program& parent,
                                            const KernelOptions& options) {
  use();
  const Graph& body = *step.workers[0].body.graph;
  if (is_elementwise(body)) {
    if (options.compile != Compile::never && segments_meet(step, parent))
      if (auto kernel = elements_kernel(step, *this)) return {std::move(kernel), {}};
    if (std::string why = why_slow_in_kernel(step_time(body, step.table.slices, multiprocessors_));
        !why.empty())
      return {nullptr, std::move(why)};
  }
  const bool is_f32 = body.node(0).spec.dtype == DType::f32;
  return is_f32 ? scan_kernel<float>(step, parent, *this, options)
                : scan_kernel<double>(step, parent, *this, options);
}

}  // namespace nestgrad::cuda
