#include "cuda/loop_time.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/core/index.h"
#include "engine/core/node_call.h"
#include "ops/attrs.h"
#include "ops/table.h"

namespace nestgrad::cuda {

namespace {

// Of one multiprocessor in the kernel of a scan that is compiled for it, where one block takes a slice through an op.
constexpr double kOpInKernel = 0.05;        // us of an op: most share a barrier with others, as a cluster
constexpr double kProductFlops = 170e3;     // a us
constexpr double kElementsInKernel = 14e3;  // a us
// Of kernels for one op.
constexpr double kLaunch = 3.5;          // us, as a node of a recorded run
constexpr double kElementwiseOps = 5;    // that share a launch, as a cluster
constexpr double kLibraryFlops = 300e3;  // a us and multiprocessor, in f32
constexpr double kBytes = 19e3;          // a us and multiprocessor

}  // namespace

StepTime step_time(const Graph& body, std::int64_t slices, std::size_t multiprocessors) {
  const double all = static_cast<double>(slices), units = static_cast<double>(multiprocessors);
  StepTime out;
  for (const GraphNode& n : body.nodes()) {
    if (n.op->kind != OpKind::value || n.op->is_alias || !n.op->cost) continue;
    const NodeCall call(body.nodes(), n);
    const OpCost cost = n.op->cost(call);
    const bool is_product = n.op == &matmul_op;
    const double elements =
        cost.bytes / static_cast<double>(size_of(n.spec.dtype)) / 3;  // two read, one written
    out.in_kernel += kOpInKernel + (is_product ? cost.flops / kProductFlops : elements / kElementsInKernel);
    out.op_by_op += (is_product ? kLaunch : kLaunch / kElementwiseOps) + all * cost.bytes / (units * kBytes) +
                    (is_product ? all * cost.flops / (units * kLibraryFlops) : 0);
  }
  const double rounds = static_cast<double>((slices + static_cast<std::int64_t>(multiprocessors) - 1) /
                                            static_cast<std::int64_t>(multiprocessors));
  out.in_kernel *= rounds;  // a multiprocessor has one block at a time
  return out;
}

std::size_t least_shared_memory(const Graph& body) {
  std::vector<char> is_read(uz(body.size()), 0);
  for (const GraphNode& n : body.nodes())
    for (const NodeId in : n.inputs) is_read[uz(in)] = 1;
  std::size_t most = 0;
  for (NodeId id = 0; id < body.size(); ++id) {
    const GraphNode& n = body.node(id);
    if (n.op->kind != OpKind::value || n.op->is_alias || n.op->element_loop) continue;
    std::size_t bytes = is_read[uz(id)] ? n.spec.bytes() : 0;
    for (const NodeId in : n.inputs)
      if (body.node(in).op->kind == OpKind::value) bytes += body.node(in).spec.bytes();
    most = std::max(most, bytes);
  }
  return most;
}

std::string why_slow_in_kernel(const StepTime& time) {
  if (time.in_kernel <= kPatience * time.op_by_op) return {};
  return fmt::format("a step takes about {:.3g} us in one kernel, {:.3g} op by op", time.in_kernel,
                     time.op_by_op);
}

}  // namespace nestgrad::cuda
