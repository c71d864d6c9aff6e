// What all kernels of whole scans need: the scan's table of steps in the memory of the device, and which scans they may take.
#pragma once

#include <algorithm>
#include <vector>

#include "cuda/backend.h"
#include "engine/plan/program.h"

namespace nestgrad::cuda {

// The lists of `view` as copies on the device, which `tables` keeps.
inline void upload_table(const StepTable& from, CudaBackend& backend, std::vector<DeviceTable>& tables,
                         StepTableView& view) {
  const auto upload = [&]<class V>(const std::vector<V>& values) {
    tables.emplace_back(backend, values.data(), values.size() * sizeof(V));
    return tables.back().template as<V>();
  };
  view.carry = upload(from.carries), view.x = upload(from.xs), view.constant = upload(from.constants);
  view.stack = upload(from.stacks), view.offsets = upload(from.offsets), view.owners = upload(from.owners);
}

// Where the literals of a scan's body are.
inline DeviceTable literal_addresses(const ScanStep& step, CudaBackend& backend) {
  std::vector<const std::byte*> at;
  for (const Array& literal : step.workers[0].body.literals) at.push_back(literal.data());
  return {backend, at.data(), at.size() * sizeof(at[0])};
}

// Where a scan reads what other scans recompute, they and it must do so segment by segment alike.
inline bool segments_meet(const ScanStep& step, const Program& parent) {
  int every = step.every;
  for (int maker : step.makers) {
    const int other = parent.code[static_cast<std::size_t>(maker)].scan->every;
    if (every != 0 && every != other) return false;
    every = other;
  }
  return true;
}

// Are these multiples of 16 bytes, as the texts of kernels take them to be? The memory of a plan begins so; a step of a
// stack that another loop goes along does only where its size is one.
inline bool all_whole(std::byte* const* first, std::byte* const* last) {
  return std::all_of(first, last, [](const std::byte* p) { return is_whole(p); });
}

}  // namespace nestgrad::cuda
