// NCCL, which only runs with several GPUs need.
#include <nccl.h>

#include "cuda/lazy_library.h"

namespace {

const nestgrad::cuda::LazyLibrary& library() {
  static const nestgrad::cuda::LazyLibrary only(
      fmt::format("NCCL {}", NCCL_MAJOR), fmt::format("libnccl.so.{}", NCCL_MAJOR), NESTGRAD_NCCL_FOLDER);
  return only;
}

}  // namespace

extern "C" {
STANDS_FOR(ncclResult_t, ncclGetVersion, (int* version), (version))
STANDS_FOR(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * id), (id))
STANDS_FOR(ncclResult_t, ncclCommInitRank, (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank),
           (comm, ranks, id, rank))
STANDS_FOR(ncclResult_t, ncclCommDestroy, (ncclComm_t comm), (comm))
STANDS_FOR(ncclResult_t, ncclCommAbort, (ncclComm_t comm), (comm))
STANDS_FOR(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t* error), (comm, error))
STANDS_FOR(const char*, ncclGetErrorString, (ncclResult_t result), (result))
STANDS_FOR(const char*, ncclGetLastError, (ncclComm_t comm), (comm))
STANDS_FOR(ncclResult_t, ncclGroupStart, (), ())
STANDS_FOR(ncclResult_t, ncclGroupEnd, (), ())
STANDS_FOR(ncclResult_t, ncclSend,
           (const void* from, size_t count, ncclDataType_t type, int to, ncclComm_t comm,
            cudaStream_t stream),
           (from, count, type, to, comm, stream))
STANDS_FOR(ncclResult_t, ncclRecv,
           (void* to, size_t count, ncclDataType_t type, int from, ncclComm_t comm, cudaStream_t stream),
           (to, count, type, from, comm, stream))
}
