#include "engine/plan/price.h"

#include "engine/core/node_call.h"
#include "engine/core/over_processes.h"

namespace nestgrad {

namespace {

constexpr double kElementwise = 8, kProducts = 32;  // flops a byte

// Of what may be computed again elsewhere.
std::optional<double> movable_flops(const std::deque<GraphNode>& nodes, const GraphNode& n) {
  if (n.op->kind != OpKind::value || !n.op->is_shared || !n.op->cpu || !n.op->cost) return std::nullopt;
  if (exchanges(*n.op, n.attrs)) return std::nullopt;  // what is computed again may depend on the rank
  return n.op->cost(NodeCall(nodes, n)).flops;
}
Bytes bytes_for(double flops, const Spec& spec, double flops_a_byte) {
  return static_cast<Bytes>(flops * static_cast<double>(size_of(spec.dtype)) / flops_a_byte);
}

}  // namespace

double flops_of(const std::deque<GraphNode>& nodes, const GraphNode& n) {
  const bool computes = n.op->kind == OpKind::value && !n.op->is_alias && n.op->cost;
  return computes ? n.op->cost(NodeCall(nodes, n)).flops : 0;
}

std::optional<Bytes> price_of_computing(const std::deque<GraphNode>& nodes, const GraphNode& n) {
  if (n.op->kind == OpKind::constant || n.op->is_alias) return 0;
  const std::optional<double> flops = movable_flops(nodes, n);
  if (!flops) return std::nullopt;
  if (*flops == 0) return price_of_reading(n.spec);  // a rearrangement
  if (!n.op->element_loop) return std::nullopt;
  return bytes_for(*flops, n.spec, kElementwise);
}

std::optional<Bytes> price_of_running(const std::deque<GraphNode>& nodes, const GraphNode& n) {
  if (const std::optional<Bytes> cheap = price_of_computing(nodes, n)) return cheap;
  const std::optional<double> flops = movable_flops(nodes, n);
  if (!flops) return std::nullopt;
  return bytes_for(*flops, n.spec, n.op->kernel_adding_to ? kProducts : kElementwise);
}

}  // namespace nestgrad
