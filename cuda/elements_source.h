// The CUDA C++ text of a kernel for a scan whose steps are elementwise (cuda/elements.cuh), a prefix sum over chunks say: one launch
// instead of one for each step, and of what is carried nothing is read again. It has the bits of the scan op by op.
#pragma once

#include <memory>
#include <string>

#include "engine/plan/program.h"

namespace nestgrad::cuda {

class CudaBackend;

// Are all values of a scan's body made element by element, and of one size, but for what is one number for all?
bool is_elementwise(const Graph& body);

struct ElementsSource {
  std::string text;          // of kElementsFunction, without what it includes; empty: there is none
  std::int64_t threads = 0;  // of a slice
  std::int64_t each = 1;     // elements of a thread: one, or four that begin at a multiple of 16 bytes
};

// A kernel of blocks of kElementsThreads, for each slice as many as have its threads. Its parameters: where the
// scan's StepTableView is; Bases; Stretch; where the addresses of the body's literals are; the number of blocks of a slice.
constexpr const char* kElementsFunction = "nestgrad_elements";
constexpr unsigned kElementsThreads = 256;

// fours: may a thread take four? Values then have to begin at multiples of 16 bytes; those of the table do where its bases do.
ElementsSource elements_source(const ScanStep& scan, bool fours = true);

// The kernel; null: there is no text, or it does not compile.
std::unique_ptr<LoopKernel> elements_kernel(const ScanStep& step, CudaBackend& backend);

}  // namespace nestgrad::cuda
