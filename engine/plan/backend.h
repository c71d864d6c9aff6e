// Backend: compiles plans for a device other than the CPU, kernel by kernel. Implemented by cuda/. Its work
// goes into the queue of the device's memory.
#pragma once

#include "engine/core/device_memory.h"
#include "engine/core/rewrite.h"
#include "engine/plan/cluster.h"
#include "engine/plan/plan_options.h"

namespace nestgrad {

struct Program;  // engine/plan/program.h
struct ScanStep;
class LoopKernel;  // engine/plan/step_table.h

// A kernel, how much memory it needs while it runs (the address of that comes after those of the inputs), and its text, if it was
// compiled for its shapes.
template <class Kernel>
struct WithScratch {
  Kernel run;
  std::size_t scratch_bytes = 0;
  std::string source;
};

// What a plan asks of the kernels that it is made of.
struct KernelOptions {
  Precision precision = Precision::f32;  // of products
  Compile compile = Compile::never;  // background or now: kernels compiled for their shapes, where that pays
};

struct LoopKernelOrReason {
  std::unique_ptr<LoopKernel> kernel;
  std::string why_not;  // where there is none
};

class Backend : public DeviceMemory {
 public:
  Backend& backend() final { return *this; }

  // Ops without one are expanded, or refused.
  virtual bool has_kernel(const Op& op) const = 0;
  // Kernels made here queue their work when they are called, with addresses of this device. Errors that they
  // find in numbers name `loc`.
  virtual WithScratch<OpKernel> kernel(const OpCall& call, Loc loc, const KernelOptions& options) = 0;
  virtual WithScratch<ClusterKernel> cluster(const ClusterCall& call, const KernelOptions& options) = 0;

  // A graph of equal values that suits the device better; a pass (engine/plan/passes.h) over a graph and over the bodies of its scans.
  virtual Lowered suited(const Lowered& graph, const PlanOptions& options) const = 0;

  // Of a plan that goes over processes, before it runs: makes the way for its collectives, of which these are the attributes.
  // All processes of a group do so at the same point. False: their bytes go through the host, which waits for them, so that
  // the run cannot be recorded.
  virtual bool connect(std::span<const Attrs> collectives) = 0;
  // Which way these go, for people, one line each; only what connect() has made.
  virtual std::string connections(std::span<const Attrs> collectives) const = 0;

  // Why a scan over slices (engine/plan/slicing.h) with this body, of one slice, is to run op by op, and not as one kernel;
  // for people, a clause. Empty: it may be one.
  virtual std::string why_op_by_op(const Graph& body, std::int64_t slices) const = 0;
  // Such a scan as one kernel; or no kernel, and why it is to run op by op after all. Unless options.compile is
  // never, it is compiled for this scan, and is there before the call returns.
  virtual LoopKernelOrReason loop_kernel(const ScanStep& scan, const Program& parent,
                                         const KernelOptions& options) = 0;

  // What `work` queues, to be queued as a whole. record() calls `work` once and does not keep it; only replay()
  // does the work. over: a recording that nobody needs any more, to be changed into this one where that is possible; null:
  // none.
  class Recording {
   public:
    virtual ~Recording() = default;
    virtual void replay() = 0;
    virtual std::size_t pieces() const = 0;  // of work; the device keeps a few hundred bytes for each
    virtual bool was_changed() const = 0;    // of another one
  };
  struct RecordingOrReason {
    std::unique_ptr<Recording> recording;
    std::string why_not;  // where there is none: this work cannot be recorded
  };
  virtual RecordingOrReason record(const std::function<void()>& work, std::unique_ptr<Recording> over) = 0;
  // Is each instruction waited for, so that an error names the one that made it?
  virtual bool waits_for_each() const = 0;
};

}  // namespace nestgrad
