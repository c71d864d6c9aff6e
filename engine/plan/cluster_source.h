// The C++ text of a cluster: what a person would write for its shapes. Values stay in registers; only a value
// that is read again after a sum over its row goes through memory. The text needs the headers of ops/numerics
// (NativeTarget::headers) before it, and computes bit for bit what Cluster does op by op.
#pragma once

#include <string>

#include "engine/plan/cluster.h"

namespace nestgrad {

struct ClusterSource {
  std::string text;  // a function of type CompiledCluster, its name being "$"; empty: there is no such text
  std::int64_t units = 0;  // what it can be cut into, for threads: rows, or elements
  std::int64_t unit_elements = 1;
};

// in, out: as of ClusterKernel; computes the units begin..end.
using CompiledCluster = void (*)(const std::byte* const* in, std::byte* const* out, std::int64_t begin,
                                 std::int64_t end);

ClusterSource cluster_source(const ClusterCall& call);

}  // namespace nestgrad
