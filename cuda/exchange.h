// DeviceExchange: carries the memory of one GPU to the other ranks of a group and back. By NCCL, queued like a kernel, where
// every rank has a GPU of its own and all have the same NCCL; else through the host, for which each exchange waits.
//
// Kernels of collectives keep it (cuda/collectives.cu); used by the thread that uses the device.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "cuda/backend.h"
#include "cuda/nccl.h"

namespace nestgrad::cuda {

class DeviceExchange {
 public:
  DeviceExchange(CudaBackend& backend, std::shared_ptr<Transport> processes)
      : backend_(backend), processes_(std::move(processes)) {}

  Transport& processes() const { return *processes_; }
  // Chooses the way. All ranks call it at the same point; later calls do nothing. True: what is queued from here on does not
  // wait for the host. ProcessError where others do not come within the stall limit.
  bool connect();
  // "4 processes: collectives by NCCL 2.28.9", or through the host and why, a line; empty before connect(). The same at all ranks.
  std::string description() const;
  // Addresses are the device's.
  void exchange(std::span<const Transport::Send> out, std::span<const Transport::Receive> in);

  // Is there work in the queue that needs others? Then wait() asks for `problem`, and ends it where there is one.
  bool waits_on_device() const { return nccl_ != nullptr; }
  std::string problem(std::chrono::nanoseconds waited) const;
  // Nothing can be exchanged from here on: ProcessError with `problem`.
  void end(const std::string& problem);

 private:
  void through_host(std::span<const Transport::Send> out, std::span<const Transport::Receive> in);

  CudaBackend& backend_;
  std::shared_ptr<Transport> processes_;
  bool connected_ = false;
  std::string why_host_, ended_;
  std::unique_ptr<NcclRank> nccl_;
};

}  // namespace nestgrad::cuda
