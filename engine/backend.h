// Backend: what a device other than the CPU does for arrays
// and plans. Implemented by cuda/.
//
// All work goes into one queue and happens in its order; a call returns before its work is done, unless it
// says that it waits. Addresses are the device's: the host does not read there.
#pragma once

#include "engine/cluster.h"
#include "engine/device.h"
#include "engine/graph.h"
#include "engine/place.h"
#include "engine/random_fill.h"

namespace nestgrad {

struct Program;  // engine/program.h
struct ScanStep;
class LoopKernel;  // engine/step_table.h

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string name() const = 0;
  virtual std::string description() const = 0;
  virtual Device::Memory memory() const = 0;

  // DeviceError, with what is free, where it does not fit.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void release(std::byte* address) noexcept = 0;

  // `from` may be changed when the call returns.
  virtual void upload(const std::byte* from, std::byte* to, std::size_t bytes) = 0;
  virtual void download(const std::byte* from, std::byte* to, std::size_t bytes) = 0;  // waits
  virtual void copy(const std::byte* from, std::byte* to, std::size_t bytes) = 0;
  virtual void zero(std::byte* at, std::size_t bytes) = 0;
  virtual void random(const RandomFill& fill, std::int64_t n, std::byte* to) = 0;  // n elements
  virtual void synchronize() = 0;  // waits; throws what went wrong since

  // Kernels made here queue their work when they are called, with addresses of this device. Errors that they
  // find in numbers name `loc`.
  virtual Kernel kernel(const Call& call, Loc loc, Precision precision) = 0;
  virtual ClusterKernel cluster(const ClusterCall& call) = 0;

  // Can a scan over slices (engine/slicing.h) with this body, of one slice, be one kernel?
  virtual bool suits_loop_kernel(const Graph& body) = 0;
  // Null if it cannot after all.
  virtual std::unique_ptr<LoopKernel> loop_kernel(const ScanStep& scan, const Program& parent) = 0;

  // What was queued between `record` and its end, to be queued again as a whole.
  class Recording {
   public:
    virtual ~Recording() = default;
    virtual void replay() = 0;
  };
  virtual std::unique_ptr<Recording> record(const std::function<void()>& work) = 0;
};

// Of the CUDA backend; cuda/no_cuda.cpp stands in where it is not built.
std::shared_ptr<Backend> cuda_backend(int index);
int cuda_device_count();
std::string why_no_cuda_device();

}  // namespace nestgrad
