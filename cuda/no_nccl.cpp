// Stands in for NCCL where its header was not found.
#include "cuda/nccl.h"

namespace nestgrad::cuda {

struct NcclRank::Communicator {};

namespace {

constexpr const char* kWhy = "this build has no NCCL; install it (nccl.h), and configure again";

}  // namespace

NcclLibrary nccl_library() { return {"", kWhy}; }
std::string new_nccl_id() { throw DeviceError(kWhy); }

NcclRank::NcclRank(CudaBackend& backend, const Transport&, const std::string&)
    : backend_(backend), limit_(0) {
  throw DeviceError(kWhy);
}
NcclRank::~NcclRank() = default;
void NcclRank::exchange(std::span<const Transport::Send>, std::span<const Transport::Receive>) {}
std::string NcclRank::problem() const { return ""; }
void NcclRank::abort() {}

}  // namespace nestgrad::cuda
