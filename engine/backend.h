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

  // A scan over slices (engine/slicing.h) as one kernel, each slice on its own through many steps.
  class FusedScan {
   public:
    // Which steps, and where the carries come from and go to: the scan's own places, or a copy
    // (ScanStep::Carry) with this number.
    struct Steps {
      int first = 0, count = 0;  // times, in the scan's direction
      int from_copy = -1;        // -1: what the scan begins with
      int to_copy = -1;          // -1: if `last`, the last values; else nowhere
      bool last = false;
      bool store = true;  // false: only what is recomputed is wanted
    };
    virtual ~FusedScan() = default;
    // Queues them; addresses: where `places` lie.
    virtual void run(std::byte* const* addresses, const Steps& steps) = 0;
    virtual std::string describe() const = 0;
    std::vector<Place> places;
  };
  // Can scans with this body, of one slice, be fused?
  virtual bool suits_fused_scan(const Graph& body) = 0;
  // Null if it cannot after all.
  virtual std::unique_ptr<FusedScan> fuse_scan(const ScanStep& scan, const Program& parent) = 0;

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
