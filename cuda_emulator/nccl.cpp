// NCCL between emulated devices: what a rank sends lies in a mailbox until the other has taken it, and a send is over no
// sooner. So programs that only work because a message was stored on its way wait for ever, as on GPUs without such storage.
#include "nccl.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>

#include "cuda_emulator/queue.h"

using namespace nestgrad::emulator;

namespace {

struct Message {
  std::vector<unsigned char> bytes;
  bool taken = false;
};

// The ranks that share an id. All here is guarded by the runtime's mutex.
struct Clique {
  int ranks = 0, joined = 0;
  std::map<int, int> devices;                                                     // rank -> device
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> under_way;  // (from, to)
};

struct Communicator {
  std::shared_ptr<Clique> clique;
  int rank = 0, device = 0;
  bool aborted = false;
  int recorded = 0;  // exchanges in graphs
};

struct Transfer {
  bool sends;
  void* memory;
  std::size_t bytes;
  int other;
};

struct Asked {
  std::shared_ptr<Communicator> comm;
  cudaStream_t stream;
  Transfer transfer;
};

thread_local int groups = 0;
thread_local std::vector<Asked> asked;  // between ncclGroupStart and ncclGroupEnd

std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return 1;
    case ncclFloat32:
      return 4;
    case ncclFloat64:
      return 8;
  }
  return 0;
}

// The work of one group for one communicator. It runs as often as it is asked, until all is sent, taken and received;
// then it can run anew, as in a graph that is launched again.
class Exchange {
 public:
  Exchange(std::shared_ptr<Communicator> comm, std::vector<Transfer> transfers, bool recorded)
      : comm_(std::move(comm)), transfers_(std::move(transfers)), recorded_(recorded) {
    comm_->recorded += recorded_;
  }
  ~Exchange() {
    comm_->recorded -= recorded_;
    runtime().changed.notify_all();
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  bool run() {
    if (comm_->aborted) return true;
    if (!begun_) begin();
    bool done = true;
    for (std::size_t i = 0; i < transfers_.size(); ++i) done = step(i) && done;
    begun_ = !done;
    return done;
  }

 private:
  void begin() {
    begun_ = true;
    sent_.assign(transfers_.size(), nullptr);
    received_.assign(transfers_.size(), false);
    for (std::size_t i = 0; i < transfers_.size(); ++i) {
      const Transfer& t = transfers_[i];
      require_device_memory(comm_->device, t.memory, t.bytes, t.sends ? "ncclSend" : "ncclRecv");
      if (!t.sends) continue;
      const auto* from = static_cast<const unsigned char*>(t.memory);
      sent_[i] = std::make_shared<Message>(Message{{from, from + t.bytes}});
      comm_->clique->under_way[{comm_->rank, t.other}].push_back(sent_[i]);
    }
    runtime().changed.notify_all();
  }

  bool step(std::size_t i) {
    const Transfer& t = transfers_[i];
    if (t.sends) return sent_[i]->taken;
    if (received_[i]) return true;
    for (std::size_t before = 0; before < i; ++before)  // in the order in which they were asked for
      if (!transfers_[before].sends && transfers_[before].other == t.other && !received_[before])
        return false;
    auto& waiting = comm_->clique->under_way[{t.other, comm_->rank}];
    if (waiting.empty()) return false;
    Message& message = *waiting.front();
    if (message.bytes.size() != t.bytes)
      throw Fault{cudaErrorIllegalAddress,
                  fmt::format("[ncclRecv] rank {} sent {} bytes, and rank {} waits for {}", t.other,
                              message.bytes.size(), comm_->rank, t.bytes)};
    if (t.bytes > 0) std::memcpy(t.memory, message.bytes.data(), t.bytes);
    message.taken = true;
    waiting.pop_front();
    runtime().changed.notify_all();
    return received_[i] = true;
  }

  std::shared_ptr<Communicator> comm_;
  std::vector<Transfer> transfers_;
  const bool recorded_;
  bool begun_ = false;
  std::vector<std::shared_ptr<Message>> sent_;
  std::vector<bool> received_;
};

std::map<std::string, std::shared_ptr<Clique>>& cliques() {
  static auto& only = *new std::map<std::string, std::shared_ptr<Clique>>;
  return only;
}

// One call: counts it, and fails where that was planned.
template <class Body>
ncclResult_t nccl_call(const char* function, Body body) {
  const std::lock_guard lock(runtime().mutex);
  if (const int planned = planned_failure(function)) return static_cast<ncclResult_t>(planned);
  return body();
}

ncclResult_t submit_asked() {
  std::vector<Asked> all;
  all.swap(asked);
  while (!all.empty()) {
    const Asked first = all.front();
    std::vector<Transfer> transfers;
    std::erase_if(all, [&](const Asked& a) {
      if (a.comm != first.comm || a.stream != first.stream) return false;
      transfers.push_back(a.transfer);
      return true;
    });
    const CUstream_st* const queue = find_stream(first.stream);
    const bool recorded = queue != nullptr && queue->capture == cudaStreamCaptureStatusActive;
    const auto exchange = std::make_shared<Exchange>(first.comm, std::move(transfers), recorded);
    if (enqueue_until_done(first.stream, [exchange] { return exchange->run(); }) != cudaSuccess)
      return ncclUnhandledCudaError;
  }
  return ncclSuccess;
}

}  // namespace

struct ncclComm {
  std::shared_ptr<Communicator> shared;
};

namespace {

ncclResult_t add(const char* function, Transfer transfer, ncclDataType_t type, ncclComm_t comm,
                 cudaStream_t stream) {
  return nccl_call(function, [&] {
    if (comm == nullptr || bytes_of(type) == 0) return ncclInvalidArgument;
    const Communicator& c = *comm->shared;
    const CUstream_st* queue = find_stream(stream);
    if (transfer.other < 0 || transfer.other >= c.clique->ranks || c.aborted) return ncclInvalidArgument;
    if (queue == nullptr || queue->device != c.device) return ncclInvalidUsage;
    transfer.bytes *= bytes_of(type);
    asked.push_back({comm->shared, stream, transfer});
    return groups > 0 ? ncclSuccess : submit_asked();
  });
}

// As NCCL does, it waits until no graph refers to the communicator.
void leave(ncclComm_t comm) {
  if (comm == nullptr) return;
  runtime().changed.notify_all();
  wait_until([shared = comm->shared] { return shared->recorded == 0; });
  delete comm;
}

}  // namespace

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGetVersion(int* version) {
  return nccl_call("ncclGetVersion", [&] { return *version = NCCL_VERSION_CODE, ncclSuccess; });
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return nccl_call("ncclGetUniqueId", [&] {
    static int last = 0;
    const std::string text = fmt::format("emulated clique {}", ++last);
    *id = {};
    std::ranges::copy(text, id->internal);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  return nccl_call("ncclCommInitRank", [&] {
    if (rank < 0 || rank >= ranks) return ncclInvalidArgument;
    if (groups > 0) return ncclInvalidUsage;
    std::shared_ptr<Clique>& known = cliques()[id.internal];
    if (!known) known = std::make_shared<Clique>();
    const std::shared_ptr<Clique> clique = known;
    if (clique->ranks != 0 && clique->ranks != ranks) return ncclInvalidArgument;
    clique->ranks = ranks;
    if (!clique->devices.emplace(rank, current_device()).second) return ncclInvalidUsage;
    ++clique->joined;
    runtime().changed.notify_all();
    wait_until([&] { return clique->joined >= ranks; });
    cliques().erase(id.internal);
    for (const auto& [a, device] : clique->devices)
      for (const auto& [b, other] : clique->devices)
        if (a != b && device == other) return ncclInvalidUsage;  // "Duplicate GPU detected"
    *comm = new ncclComm{std::make_shared<Communicator>(Communicator{clique, rank, current_device()})};
    return ncclSuccess;
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return nccl_call("ncclCommDestroy", [&] { return leave(comm), ncclSuccess; });
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return nccl_call("ncclCommAbort", [&] {
    if (comm == nullptr) return ncclInvalidArgument;
    comm->shared->aborted = true;
    leave(comm);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const std::lock_guard lock(runtime().mutex);
  if (comm == nullptr || error == nullptr) return ncclInvalidArgument;
  *error = static_cast<ncclResult_t>(planned_failure("ncclCommGetAsyncError"));
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++groups;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  return nccl_call("ncclGroupEnd", [] {
    if (groups == 0) return ncclInvalidUsage;
    return --groups > 0 ? ncclSuccess : submit_asked();
  });
}

ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int to, ncclComm_t comm,
                      cudaStream_t stream) {
  return add("ncclSend", {true, const_cast<void*>(from), count, to}, type, comm, stream);
}

ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int from, ncclComm_t comm,
                      cudaStream_t stream) {
  return add("ncclRecv", {false, to, count, from}, type, comm, stream);
}
