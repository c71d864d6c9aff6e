// Kernels of collectives, whatever memory their numbers lie in: what is sent to whom, and the order of additions, stand here
// once for the CPU and for GPUs, so that both have the same bits.
#pragma once

#include <memory>

#include "engine/core/op.h"
#include "engine/processes/transport.h"

namespace nestgrad {

// Where the numbers of a collective lie, and how they get to other processes. What it is asked happens in that order, for a
// device in its queue. Used by the thread that runs the kernel.
class CollectiveMemory {
 public:
  virtual ~CollectiveMemory() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // As Transport::exchange, of addresses in this memory.
  virtual void exchange(std::span<const Transport::Send> out, std::span<const Transport::Receive> in) = 0;
  virtual void copy(const std::byte* from, std::byte* to, std::size_t bytes) = 0;
  virtual void zero(std::byte* at, std::size_t bytes) = 0;
  // to[i] += from[i]
  virtual void add(DType dtype, std::byte* to, const std::byte* from, std::int64_t n) = 0;
  // For one run of a kernel, with anything in it. It is always asked for the number of bytes that was said when the kernel was
  // made.
  virtual std::shared_ptr<std::byte> scratch(std::size_t bytes) = 0;
};

// The memory of the host, for the processes that the call goes over; ShapeError where the group is gone.
std::shared_ptr<CollectiveMemory> host_memory(const OpCall& call);

// Bytes of scratch that all_sum of so many numbers asks for.
std::size_t all_sum_scratch(const OpCall& call, int rank, int size);

OpKernel all_sum_kernel(const OpCall& call, std::shared_ptr<CollectiveMemory> memory);
OpKernel exchange_kernel(const OpCall& call, std::shared_ptr<CollectiveMemory> memory);
// rank_before and rank_after
OpKernel neighbour_kernel(const OpCall& call, std::shared_ptr<CollectiveMemory> memory);

// The processes that the call goes over; ShapeError where the group is gone.
std::shared_ptr<Transport> processes_of(const OpCall& call);

}  // namespace nestgrad
