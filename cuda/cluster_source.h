// The CUDA C++ text of a cluster (engine/plan/cluster.h): what a person would write for its ops, with what lies between them in
// registers. As a kernel of its own, and as a part of a scan's kernel (cuda/scan_source.h). It has the bits of the kernels that
// interpret the same cluster (cuda/cluster.cuh).
#pragma once

#include <string>
#include <vector>

#include "engine/plan/cluster.h"

namespace nestgrad::cuda {

// What the text is for. Around it stand `thread`, the number of a thread among those that do the cluster, `threads`, how many they
// are, `lane`, its number in the warp; and the cluster's inputs and outputs, as x0, x1, .. and, by the number of the op, y0, y1, ..
struct ClusterUse {
  std::vector<std::string> numbers = {};  // by input: the text of one that is known, else empty
  std::vector<bool> in_whole = {};        // by input: does it begin at a multiple of 16 bytes?
  std::vector<bool> out_whole = {};       // by op: likewise, of those that are outputs
  std::int64_t threads = 0;               // 0: as many as there are elements or rows
  std::string count;                      // how many elements or, if there are sums of rows, rows; as text
  std::int64_t most_in_lane = 0;          // elements of a row that a lane keeps
};

// The text of a literal that is one number; empty: it is several, or none that can be written.
std::string number_text(const Array& literal);

// Empty: there is no text.
std::string cluster_text(const ClusterCall& call, const ClusterUse& use);

// A whole kernel, of blocks of kClusterThreads. Its parameters: Pointers, and `count` as ClusterUse has it, an std::int64_t.
constexpr const char* kClusterFunction = "nestgrad_cluster";
struct ClusterKernelText {
  std::string text = {};  // empty: there is none
  std::int64_t count = 0, threads = 0;
  std::vector<bool> in_whole = {};  // by input: must it begin at a multiple of 16 bytes?
  bool out_whole = false;           // likewise of outputs
};
ClusterKernelText cluster_kernel_text(const ClusterCall& call);

}  // namespace nestgrad::cuda
