// Backend: compiles plans for a device other than the CPU, kernel by kernel. Implemented by cuda/. Its work
// goes into the queue of the device's memory.
#pragma once

#include "engine/core/device_memory.h"
#include "engine/core/graph.h"
#include "engine/plan/cluster.h"

namespace nestgrad {

struct Program;  // engine/plan/program.h
struct ScanStep;
class LoopKernel;  // engine/plan/step_table.h

class Backend : public DeviceMemory {
 public:
  Backend& backend() final { return *this; }

  // Ops without one are expanded, or refused.
  virtual bool has_kernel(const Op& op) const = 0;
  // Kernels made here queue their work when they are called, with addresses of this device. Errors that they
  // find in numbers name `loc`.
  virtual OpKernel kernel(const OpCall& call, Loc loc, Precision precision) = 0;
  virtual ClusterKernel cluster(const ClusterCall& call) = 0;

  // Of a plan that goes over processes, before it runs: makes the way for its collectives, of which these are the attributes.
  // All processes of a group do so at the same point. False: their bytes go through the host, which waits for them, so that
  // the run cannot be recorded.
  virtual bool connect(std::span<const Attrs> collectives) = 0;
  // Which way these go, for people, one line each; only what connect() has made.
  virtual std::string connections(std::span<const Attrs> collectives) const = 0;

  // Can a scan over slices (engine/plan/slicing.h) with this body, of one slice, be one kernel?
  virtual bool suits_loop_kernel(const Graph& body) = 0;
  // Null if it cannot after all.
  virtual std::unique_ptr<LoopKernel> loop_kernel(const ScanStep& scan, const Program& parent) = 0;

  // What `work` queues, to be queued as a whole. record() calls `work` once and does not keep it; only replay()
  // does the work.
  class Recording {
   public:
    virtual ~Recording() = default;
    virtual void replay() = 0;
  };
  virtual std::unique_ptr<Recording> record(const std::function<void()>& work) = 0;
};

}  // namespace nestgrad
