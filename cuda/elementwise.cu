// Clusters of elementwise ops, sums and maxima of rows (engine/plan/cluster.h) as one kernel: one that interprets, of which each
// block of threads does a few whole rows, op after op, with what lies between the ops in shared memory; and, if plans are to be
// compiled, one that is written for the cluster (cuda/cluster_source.h). An elementwise op by itself is a cluster of one.
#include <algorithm>
#include <utility>

#include "cuda/backend.h"
#include "cuda/ceil_of.h"
#include "cuda/cluster.cuh"
#include "cuda/cluster_source.h"
#include "cuda/kernel_maker.h"
#include "cuda/kernels.h"

namespace nestgrad::cuda {

namespace {

// scratch: memory for blocks whose slots are more than shared memory holds; null if they are not.
template <class T>
__global__ void cluster(const Text* text, const Strided* walks, Pointers pointers, Sizes sizes, T* scratch,
                        std::int64_t slots) {
  NESTGRAD_SHARED(T, shared);
  T* memory = scratch ? scratch + blockIdx.x * slots * sizes.slot_stride : shared;
  run_cluster(*text, walks, pointers, sizes, memory, blockIdx.x, gridDim.x);
}

constexpr std::int64_t kBlocksPerMultiprocessor = 16;

std::size_t outputs_of(const ClusterCall& call) {
  return static_cast<std::size_t>(
      std::ranges::count_if(call.ops, [](const ClusterOp& op) { return op.output >= 0; }));
}

// A kernel that was written for the cluster (cuda/cluster_source.h).
using OwnCluster = void (*)(Pointers pointers, std::int64_t count);

// Puts a kernel of the cluster's own before the one that interprets it, where there is one: it runs where all that
// it takes 16 bytes at a time begins at multiples of them.
void add_own(WithScratch<ClusterKernel>& kernel, const ClusterCall& call, CudaBackend& backend) {
  ClusterKernelText text = cluster_kernel_text(call);
  if (text.text.empty()) return;
  const MadeKernel made = make_kernel(text.text, kClusterFunction, backend.index());
  if (!made.function) return;
  kernel.source = std::move(text.text);
  const auto own = reinterpret_cast<OwnCluster>(const_cast<void*>(made.function));
  const Extent extent = for_each_of(text.threads, kClusterThreads);
  kernel.run = [=, &backend, interpreted = std::move(kernel.run), outputs = outputs_of(call),
                count = text.count, in_whole = text.in_whole,
                out_whole = text.out_whole](const std::byte* const* in, std::byte* const* out) {
    Pointers pointers{};
    bool suits = true;
    for (std::size_t i = 0; i < in_whole.size(); ++i) {
      pointers.in[i] = in[i];
      suits = suits && (!in_whole[i] || is_whole(in[i]));
    }
    for (std::size_t k = 0; k < outputs; ++k) {
      pointers.out[k] = out[k];
      suits = suits && (!out_whole || is_whole(out[k]));
    }
    if (suits) launch(backend, extent, own, pointers, count);
    else interpreted(in, out);
  };
}

template <class T>
WithScratch<ClusterKernel> typed_cluster(const ClusterCall& call, CudaBackend& backend) {
  const ClusterPlan<T> plan(call);
  const Sizes sizes = plan.sizes;
  Extent extent{ceil_of(sizes.rows, sizes.rows_at_once), kClusterThreads, plan.bytes()};
  std::size_t scratch_bytes = 0;
  if (extent.shared > backend.shared_limit()) {
    extent.blocks = std::min(extent.blocks,
                             kBlocksPerMultiprocessor * static_cast<std::int64_t>(backend.multiprocessors()));
    scratch_bytes = std::exchange(extent.shared, 0) * static_cast<std::size_t>(extent.blocks);
  } else if (extent.shared > kPlainShared) {
    allow_shared(cluster<T>, backend.shared_limit());
  }
  const DeviceTable text(backend, &plan.text, sizeof(Text));
  const DeviceTable walks(backend, plan.walks.data(), plan.walks.size() * sizeof(Strided));
  const auto run = [=, &backend, outputs = outputs_of(call), inputs = call.in.size(),
                    slots = std::int64_t{plan.slots}](const std::byte* const* in, std::byte* const* out) {
    Pointers pointers{};
    std::copy_n(in, inputs, pointers.in);
    std::copy_n(out, outputs, pointers.out);
    launch(backend, extent, cluster<T>, text.as<Text>(), walks.as<Strided>(), pointers, sizes,
           scratch_bytes > 0 ? scratch_of<T>(in, inputs) : nullptr, slots);
  };
  return {run, scratch_bytes, ""};
}

}  // namespace

cudaError_t code_for_this_device() {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(cluster<float>));
}

WithScratch<ClusterKernel> CudaBackend::cluster(const ClusterCall& call, const KernelOptions& options) {
  use();
  WithScratch<ClusterKernel> kernel =
      dispatch(call.shape.dtype, [&]<class T>(T) { return typed_cluster<T>(call, *this); });
  if (options.compile != Compile::never) add_own(kernel, call, *this);
  return kernel;
}

OpKernel elementwise_kernel(const OpCall& call, Backend& backend) {
  if (call.out.size() == 0) return [](const std::byte* const*, std::byte*) {};
  auto [run, scratch_bytes, source] = backend.cluster(single(call), cuda(backend).options());
  cuda(backend).need_scratch(scratch_bytes);
  cuda(backend).show(std::move(source));
  return [run = std::move(run)](const std::byte* const* in, std::byte* out) { run(in, &out); };
}

}  // namespace nestgrad::cuda
