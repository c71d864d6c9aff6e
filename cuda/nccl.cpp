#include "cuda/nccl.h"

#include <fmt/format.h>
#include <nccl.h>

#include <cstring>
#include <exception>

#include "engine/core/index.h"
#include "engine/processes/stall.h"

namespace nestgrad::cuda {

namespace {

void check(ncclResult_t result, const char* call, ncclComm_t communicator = nullptr) {
  if (result == ncclSuccess) return;
  const char* more = communicator ? ncclGetLastError(communicator) : "";
  throw DeviceError(fmt::format("[cuda] {}: {}{}{}", call, ncclGetErrorString(result),
                                more && *more ? "; " : "", more ? more : ""));
}

// Each byte of these goes to or from another rank, in one kernel.
void queue(ncclComm_t communicator, cudaStream_t stream, std::span<const Transport::Send> out,
           std::span<const Transport::Receive> in) {
  if (out.empty() && in.empty()) return;
  check(ncclGroupStart(), "ncclGroupStart");
  try {
    for (const Transport::Send& s : out)
      check(ncclSend(s.bytes.data(), s.bytes.size(), ncclInt8, s.to, communicator, stream), "ncclSend",
            communicator);
    for (const Transport::Receive& r : in)
      check(ncclRecv(r.bytes.data(), r.bytes.size(), ncclInt8, r.from, communicator, stream), "ncclRecv",
            communicator);
  } catch (...) {
    static_cast<void>(ncclGroupEnd());
    throw;
  }
  check(ncclGroupEnd(), "ncclGroupEnd", communicator);
}

}  // namespace

struct NcclRank::Communicator {
  ncclComm_t handle = nullptr;
  std::string problem;
};

NcclLibrary nccl_library() {
  try {
    int version = 0;
    check(ncclGetVersion(&version), "ncclGetVersion");
    return {fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100), ""};
  } catch (const DeviceError& error) {
    return {"", error.what()};
  }
}

std::string new_nccl_id() {
  ncclUniqueId id;
  check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  return {id.internal, sizeof(id.internal)};
}

NcclRank::NcclRank(CudaBackend& backend, const Transport& processes, const std::string& id)
    : backend_(backend), limit_(processes.stall_limit()) {
  ncclUniqueId unique;
  std::memcpy(unique.internal, id.data(), std::min(id.size(), sizeof(unique.internal)));
  const int size = processes.size(), rank = processes.rank();
  const auto made = std::make_shared<Communicator>();
  // Connections are made with the first bytes, and could not be while a run is recorded.
  const std::shared_ptr<std::byte> bytes = backend.table(uz(2 * size));
  backend.zero(bytes.get(), uz(2 * size));
  const auto begin = [made, bytes, size, rank, unique, index = backend.index(), stream = backend.stream()] {
    try {
      NESTGRAD_CUDA(cudaSetDevice(index));
      check(ncclCommInitRank(&made->handle, size, unique, rank), "ncclCommInitRank");
      std::vector<Transport::Send> out;
      std::vector<Transport::Receive> in;
      for (int r = 0; r < size; ++r) {
        if (size > 1 && r == rank) continue;
        out.push_back({r, {bytes.get() + r, 1}});
        in.push_back({r, {bytes.get() + size + r, 1}});
      }
      queue(made->handle, stream, out, in);
      NESTGRAD_CUDA(cudaStreamSynchronize(stream));
    } catch (const Error& error) {
      made->problem = error.what();
    }
  };
  if (!returns_within(limit_, begin))
    throw ProcessError(fmt::format(
        "[processes] rank {} of {} has waited for the GPUs of others for {} s (NESTGRAD_STALL_LIMIT), to begin with: "
        "one of them is stopped, overloaded or cut off",
        rank, size, std::chrono::duration<double>(limit_).count()));
  if (!made->problem.empty()) {
    if (made->handle) static_cast<void>(ncclCommAbort(made->handle));
    throw DeviceError(made->problem);
  }
  communicator_ = made;
}

// Others may not have taken yet what was sent last: ncclCommDestroy waits for them. After an error they may never come.
NcclRank::~NcclRank() {
  if (!communicator_) return;
  if (std::uncaught_exceptions() > 0) abort();
  else returns_within(limit_, [made = communicator_] { static_cast<void>(ncclCommDestroy(made->handle)); });
}

void NcclRank::exchange(std::span<const Transport::Send> out, std::span<const Transport::Receive> in) {
  queue(communicator_->handle, backend_.stream(), out, in);
}

std::string NcclRank::problem() const {
  ncclResult_t error = ncclSuccess;
  if (ncclCommGetAsyncError(communicator_->handle, &error) != ncclSuccess)
    return "NCCL does not say what is wrong";
  return error == ncclSuccess || error == ncclInProgress ? "" : ncclGetErrorString(error);
}

// What waits on the GPU ends at once, and the call returns when no recorded run refers to the communicator any more: not before
// the plan is gone that the caller is in.
void NcclRank::abort() {
  if (communicator_)
    returns_within(std::chrono::seconds(1),
                   [made = communicator_] { static_cast<void>(ncclCommAbort(made->handle)); });
  communicator_.reset();
}

}  // namespace nestgrad::cuda
