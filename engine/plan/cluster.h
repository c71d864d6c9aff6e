// Cluster: ops on values of one shape as one instruction, with several outputs if need be: elementwise ops,
// sums and maxima over the last axis, and elementwise ops on those. It runs in blocks of whole rows, so that
// what lies between the ops stays in registers or in near caches. Bit for bit what the ops do one by one.
#pragma once

#include "engine/core/op.h"

namespace nestgrad {

// An op of a cluster. Its value has the cluster's shape, or is narrow: it has one element for each row, the
// last axis being 1.
struct ClusterOp {
  const Op* op = nullptr;
  RowReduction reduce = nullptr;  // of one that makes a row an element
  std::vector<int> operands;      // >= 0: an input of the cluster; ~i: the result of op i, an earlier one
  bool narrow = false;
  int output = -1;  // which output of the cluster its value is; -1: none
};

constexpr std::size_t kMostClusterOps = 20, kMostClusterInputs = 16, kMostClusterRank = 16;
constexpr std::size_t kMostRowOps = 16;  // of a cluster with narrow values: more are slower than two clusters
constexpr std::int64_t kMostClusterRow = 1024;  // elements, of a cluster with narrow values

// A cluster: its ops, what they read, and its shape. All values have that shape or are narrow, none is empty;
// inputs broadcast to what reads them.
struct ClusterCall {
  std::vector<ClusterOp> ops;
  std::vector<Spec> in;
  Spec shape;
};

using ClusterKernel = std::function<void(const std::byte* const* in, std::byte* const* out)>;

ClusterKernel cluster_kernel(const ClusterCall& call);

Spec narrow_spec(Spec shape);

}  // namespace nestgrad
