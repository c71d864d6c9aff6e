// NCCL, as far as it is used: bytes between the GPUs of the ranks of a group. Every addition is done elsewhere, in an order that
// does not depend on NCCL. cuda/nccl.cpp is built where its header is found, cuda/no_nccl.cpp elsewhere; the library is opened
// when it is first asked for (cuda/lazy_nccl.cpp).
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "cuda/backend.h"

namespace nestgrad::cuda {

struct NcclLibrary {
  std::string version;  // "2.28.9"; empty: it cannot be used
  std::string why_not;
};
NcclLibrary nccl_library();
// Bytes that rank 0 makes and all ranks of a new communicator are given.
std::string new_nccl_id();

// A rank of a communicator. Used by the thread that uses the device.
class NcclRank {
 public:
  // All ranks make it at the same time, and have sent each other a byte when it is made. ProcessError where not all come within the
  // stall limit of `processes`; DeviceError where NCCL says why not.
  NcclRank(CudaBackend& backend, const Transport& processes, const std::string& id);
  ~NcclRank();
  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;

  // Queued. Addresses are the device's.
  void exchange(std::span<const Transport::Send> out, std::span<const Transport::Receive> in);
  // What went wrong since; empty: nothing.
  std::string problem() const;
  // What is queued ends, unfinished; nothing can be exchanged from here on.
  void abort();

 private:
  struct Communicator;
  CudaBackend& backend_;
  std::chrono::milliseconds limit_;
  std::shared_ptr<Communicator> communicator_;  // null: ended
};

}  // namespace nestgrad::cuda
