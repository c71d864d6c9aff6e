// A scan over independent slices as one kernel: a block of threads takes a slice through all its steps, op
// after op, with the slice's state in shared memory where it fits. The composite is the same scan without
// slices, op by op. Which scans: those whose every op ScanWriter can write. With checkpoints through time the
// kernel runs once for each segment, and once more where a segment is recomputed.
#include <algorithm>
#include <optional>

#include "cuda/backend.h"
#include "cuda/scan_block.cuh"
#include "cuda/scan_writer.cuh"
#include "engine/program.h"

namespace nestgrad::cuda {

namespace {

constexpr unsigned kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    scan(const ScanText* text_at, Bases bases, Backend::FusedScan::Steps steps, std::byte* spilled) {
  NESTGRAD_SHARED(std::byte*, table);  // externals, then what the carries are now; then the slice's memory
  const ScanText& text = *text_at;
  const int inputs = text.carries + text.xs + text.consts;
  std::byte** const external = table;
  std::byte** const carried = table + kMostExternals;
  const std::int64_t s = blockIdx.x;
  std::byte* const memory =
      spilled ? spilled + s * text.memory_bytes : reinterpret_cast<std::byte*>(table + 2 * kMostExternals);
  const SliceMemory<T> where{memory, external};
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);

  const auto stack_slot = [&](const StepsText& v, int time) {
    return v.lazy || (steps.store && v.part.owner[s]) ? bases.at[v.base] + v.offset(s, time)
                                                      : memory + v.buffer;
  };
  const auto copy_of = [&](const CarryText& c, int number) {
    return bases.at[c.copies] + (static_cast<std::int64_t>(number) * text.slices + s) * c.part.bytes;
  };
  const auto working = [&](const CarryText& c, int parity) {
    return memory + (parity % 2 ? c.pong : c.ping);
  };
  const auto next_carry = [&](const CarryText& c, int time, int parity, bool last) {
    if (last) {
      if (steps.to_copy >= 0) return copy_of(c, steps.to_copy);
      if (!steps.last || c.final_value < 0) return working(c, parity);
      if (c.partial) return bases.at[c.terms] + s * c.part.bytes;
      return c.part.owner[s] ? bases.at[c.final_value] + c.part.at[s] : working(c, parity);
    }
    if (c.stack < 0) return working(c, parity);
    const StepsText& v = text.stack[c.stack];
    const int next = text.reverse ? time - 1 : time + 1;
    return v.lazy || (steps.store && v.part.owner[s]) ? stack_slot(v, next) : working(c, parity);
  };

  // Of a sum over slices, the first slice has what it begins with.
  for (int c = 0; c < text.carries; ++c) {
    const CarryText& carry = text.carry[c];
    const std::int64_t n = carry.part.bytes / static_cast<std::int64_t>(sizeof(T));
    std::byte* begin =
        steps.from_copy >= 0 ? copy_of(carry, steps.from_copy) : bases.at[carry.init] + carry.part.at[s];
    if (steps.from_copy < 0 && carry.partial && !carry.part.owner[s]) {
      begin = memory + carry.pong;
      for (std::int64_t i = thread; i < n; i += threads) reinterpret_cast<T*>(begin)[i] = T(0);
    } else if (carry.stack >= 0) {
      T* to = reinterpret_cast<T*>(stack_slot(text.stack[carry.stack], steps.first));
      for (std::int64_t i = thread; i < n; i += threads) to[i] = reinterpret_cast<const T*>(begin)[i];
    }
    if (thread == 0) carried[c] = begin;
  }
  for (int i = 0; i < steps.count; ++i) {
    const int time = text.reverse ? steps.first - i : steps.first + i;
    __syncthreads();
    for (int k = thread; k < text.carries; k += threads) {
      external[k] = carried[k];
      carried[k] = external[inputs + k] = next_carry(text.carry[k], time, i, i + 1 == steps.count);
    }
    for (int k = thread; k < text.xs; k += threads)
      external[text.carries + k] = bases.at[text.x[k].base] + text.x[k].offset(s, time);
    for (int k = thread; k < text.consts; k += threads)
      external[text.carries + text.xs + k] = bases.at[text.constant[k].base] + text.constant[k].part.at[s];
    if (thread == 0)
      for (int k = 0, out = inputs + text.carries; k < text.stacks; ++k)
        if (!text.stack[k].of_carry) external[out++] = stack_slot(text.stack[k], time);
    __syncthreads();
    for (int o = 0; o < text.ops; ++o) {
      run_op(text.op[o], where, reinterpret_cast<T*>(memory + text.scratch_at));
      __syncthreads();
    }
  }
}

// Last values of which the slices have terms, added up in the order of the slices.
template <class T>
__global__ void add_terms(const T* terms, std::byte* sum, PartText part, std::int64_t slices) {
  const std::int64_t i = global_thread(), n = part.bytes / static_cast<std::int64_t>(sizeof(T));
  if (i >= n) return;
  for (std::int64_t s = 0; s < slices; ++s) {
    T* to = reinterpret_cast<T*>(sum + part.at[s]) + i;
    *to = part.owner[s] ? terms[s * n + i] : *to + terms[s * n + i];
  }
}

template <class T>
class ScanKernel final : public Backend::FusedScan {
 public:
  ScanKernel(const ScanStep& step, const Program& parent, CudaBackend& backend)
      : backend_(backend), slices_(step.slices) {
    ScanWriter<T> writer(step, parent, backend, tables_);
    places = writer.bases();
    carries_ = writer.carries();
    tables_.emplace_back(backend, &writer.text(), sizeof(ScanText));
    const std::size_t table = 2 * kMostExternals * sizeof(std::byte*),
                      memory = static_cast<std::size_t>(writer.text().memory_bytes);
    extent_ = {slices_, kThreads, table + memory};
    if (extent_.shared > backend.shared_limit()) {
      extent_.shared = table;
      spilled_.emplace(backend, memory * static_cast<std::size_t>(slices_));
    }
    if (extent_.shared > kPlainShared) allow_shared(scan<T>, backend.shared_limit());
  }

  void run(std::byte* const* addresses, const Steps& steps) override {
    Bases bases{};
    std::copy_n(addresses, places.size(), bases.at);
    launch(backend_, extent_, scan<T>, tables_.back().template as<ScanText>(), bases, steps,
           spilled_ ? spilled_->as<std::byte>() : nullptr);
    for (const CarryText& c : carries_)
      if (c.terms >= 0 && steps.last)
        launch(backend_, for_each_of(c.part.bytes / static_cast<std::int64_t>(sizeof(T))), add_terms<T>,
               reinterpret_cast<const T*>(addresses[c.terms]), addresses[c.final_value], c.part, slices_);
  }
  std::string describe() const override {
    return "one kernel, " + std::to_string(extent_.shared) + " bytes of shared memory a slice" +
           (spilled_ ? ", its state outside of it" : "");
  }

 private:
  CudaBackend& backend_;
  std::int64_t slices_;
  Extent extent_{};
  std::vector<CarryText> carries_;
  std::vector<DeviceTable> tables_;  // the scan's text last
  std::optional<DeviceTable> spilled_;
};

bool runs_in_block(const Op& op) {
  if (op.kind == OpKind::input || op.kind == OpKind::constant || op.alias) return true;
  if (op.kind != OpKind::value) return false;
  return op.loop || op.view || op.expand || ScanWriter<float>::written(op);
}

}  // namespace

bool CudaBackend::suits_fused_scan(const Graph& body) {
  const DType dtype = body.node(0).spec.dtype;
  for (const Node& n : body.nodes())
    if (n.spec.dtype != dtype || !runs_in_block(*n.op)) return false;
  return is_float(dtype);
}

std::unique_ptr<Backend::FusedScan> CudaBackend::fuse_scan(const ScanStep& step, const Program& parent) {
  use();
  const Program& body = step.workers[0].body;
  try {
    if (body.graph->node(0).spec.dtype == DType::f32)
      return std::make_unique<ScanKernel<float>>(step, parent, *this);
    return std::make_unique<ScanKernel<double>>(step, parent, *this);
  } catch (const Unsuited&) {
    return nullptr;
  }
}

}  // namespace nestgrad::cuda
