// ProcessGroup: the processes that collectives of a graph go over (ops/collectives.h), under a number that nodes carry.
#pragma once

#include <memory>

#include "engine/processes/transport.h"

namespace nestgrad {

// The number is known as long as its transport lives; kernels that were made keep the transport. The processes of a
// group trace the same program, and run its plans in the same order. Any thread may ask for a group.
class ProcessGroup {
 public:
  ProcessGroup();  // this process alone: number 0
  explicit ProcessGroup(std::shared_ptr<Transport> processes);
  // Moving copies: one that was moved from is still a group.
  ProcessGroup(const ProcessGroup&) = default;
  ProcessGroup& operator=(const ProcessGroup&) = default;

  int id() const { return id_; }
  int size() const { return processes_->size(); }
  int rank() const { return processes_->rank(); }
  Transport& processes() const { return *processes_; }

  // Null if there is none of this number.
  static std::shared_ptr<Transport> find(int id);

 private:
  int id_ = 0;
  std::shared_ptr<Transport> processes_;
};

}  // namespace nestgrad
