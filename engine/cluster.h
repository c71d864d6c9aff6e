// Cluster: elementwise ops of which each feeds only the next, as one instruction. It runs block by block, so
// that what lies between them never leaves the first-level cache. Bit for bit what the ops do one by one.
// Internal to the plan.
#pragma once

#include "engine/op.h"

namespace nestgrad {

// An op of a cluster; operands >= 0 are inputs of the cluster, ~i is the result of op i, an earlier one.
struct ClusterOp {
  const Op* op = nullptr;
  std::vector<int> operands;
};

constexpr int kMostClusterRank = 16;

// Of ops with Op::loop that all have an output like `out`, that of the last; inputs broadcast to it.
Kernel cluster_kernel(const std::vector<ClusterOp>& ops, const std::vector<Spec>& inputs, const Spec& out);

}  // namespace nestgrad
