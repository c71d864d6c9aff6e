// The promises of NCCL's stand-in, and of collectives that go by it: each rank has a GPU of its own.
#include <nccl.h>

#include <latch>
#include <thread>

#include "cuda/exchange.h"
#include "engine/processes/group.h"
#include "ops/collectives.h"
#include "tests/cuda/emulator_testing.h"
#include "tests/lent_transport.h"
#include "tests/ops/collective_cases.h"
#include "tests/testing.h"

using namespace nestgrad::emulator::testing;
namespace emulator = nestgrad::emulator;

TEST_SUITE_BEGIN("cuda-emulated");

namespace {

using nestgrad::Device;
using nestgrad::DType;
using nestgrad::RankThreads;
using nestgrad::Transport;

struct Machine : Fresh {
  explicit Machine(int gpus) { emulator::settings().devices = gpus; }
  ~Machine() { cudaSetDevice(0); }
};

// A rank of a communicator, on its own thread and device.
struct Rank {
  int rank;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
};
void on_ranks(int size, const std::function<void(Rank&)>& fn) {
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  std::vector<std::jthread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      Rank rank{r};
      if (cudaSetDevice(r) != cudaSuccess) return;
      if (cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking) != cudaSuccess) return;
      if (ncclCommInitRank(&rank.comm, size, id, r) != ncclSuccess) return;
      fn(rank);
      if (rank.comm) ncclCommDestroy(rank.comm);
      cudaStreamDestroy(rank.stream);
    });
}

// What `fn` does of a sum over ranks: each rank's result, or its error.
struct Outcome {
  nestgrad::Array sum;
  std::string plan, error;
};
std::vector<Outcome> sums(int size, std::chrono::milliseconds limit = std::chrono::minutes(1),
                          const std::function<void(int rank)>& before_second = {}) {
  std::vector<Outcome> out(static_cast<std::size_t>(size));
  RankThreads ranks(size, nullptr);
  ranks.run([&](Transport& all) {
    all.set_stall_limit(limit);
    Outcome& mine = out[static_cast<std::size_t>(all.rank())];
    try {
      const nestgrad::ProcessGroup group(nestgrad::testing::lent(all));
      const nestgrad::Function f =
          nestgrad::trace(nestgrad::TraceFn([&](const nestgrad::Tensors& t) {
                            return nestgrad::Tensors{nestgrad::all_sum(nestgrad::own(t[0], group), group)};
                          }),
                          {nestgrad::Spec{DType::f32, {5}}});
      nestgrad::Plan there = f.plan({.device = Device::cuda(all.rank())});
      const nestgrad::Array x = nestgrad::Array::full(DType::f32, {5}, all.rank() + 1);
      mine.sum = there.run({x})[0];
      mine.plan = there.str();
      if (!before_second) return;
      all.barrier();
      before_second(all.rank());
      mine.sum = there.run({x})[0];
    } catch (const nestgrad::Error& e) {
      mine.error = e.what();
    }
  });
  return out;
}

}  // namespace

TEST_CASE(
    "NCCL, emulated: what is sent between groups' ends arrives, in order, when something waits for it") {
  const Machine machine(2);
  std::vector<float> got[2];
  bool late[2] = {};
  on_ranks(2, [&](Rank& me) {
    const Array<float> mine(std::vector<float>{me.rank + 1.f, me.rank + 10.f}), theirs(2);
    const int other = 1 - me.rank;
    ncclGroupStart();
    for (int i = 0; i < 2; ++i) {
      ncclSend(mine.data + i, 1, ncclFloat32, other, me.comm, me.stream);
      ncclRecv(theirs.data + i, 1, ncclFloat32, other, me.comm, me.stream);
    }
    late[me.rank] = ncclGroupEnd() == ncclSuccess;
    late[me.rank] = late[me.rank] && cudaStreamSynchronize(me.stream) == cudaSuccess;
    got[me.rank] = theirs.read();
  });
  CHECK(late[0]);
  CHECK(late[1]);
  CHECK(got[0] == std::vector<float>{2, 11});
  CHECK(got[1] == std::vector<float>{1, 10});
}

TEST_CASE("NCCL, emulated: a graph exchanges anew each time it is launched") {
  const Machine machine(2);
  std::vector<float> got[2];
  on_ranks(2, [&](Rank& me) {
    const Array<float> mine(std::vector<float>{me.rank + 1.f}), theirs(1);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    cudaStreamBeginCapture(me.stream, cudaStreamCaptureModeThreadLocal);
    ncclGroupStart();
    ncclSend(mine.data, 1, ncclFloat32, 1 - me.rank, me.comm, me.stream);
    ncclRecv(theirs.data, 1, ncclFloat32, 1 - me.rank, me.comm, me.stream);
    ncclGroupEnd();
    launch_on(me.stream, add_one, 1, 1, 0, mine.data, 1);
    cudaStreamEndCapture(me.stream, &graph);
    cudaGraphInstantiate(&exec, graph, 0);
    for (int i = 0; i < 3; ++i) cudaGraphLaunch(exec, me.stream);
    cudaStreamSynchronize(me.stream);
    got[me.rank] = theirs.read();
    cudaGraphDestroy(graph);
    cudaGraphExecDestroy(exec);
  });
  CHECK(got[0] == std::vector<float>{4});
  CHECK(got[1] == std::vector<float>{3});
}

TEST_CASE("NCCL, emulated: wrong use is an error, or a fault that says what is wrong") {
  const Machine machine(2);
  ncclResult_t stranger[2] = {}, elsewhere[2] = {}, in_group[2] = {};
  cudaError_t lengths[2] = {};
  std::latch over(2);
  on_ranks(2, [&](Rank& me) {
    const Array<float> x(2);
    stranger[me.rank] = ncclSend(x.data, 1, ncclFloat32, 2, me.comm, me.stream);
    cudaSetDevice(1 - me.rank);
    elsewhere[me.rank] = ncclSend(x.data, 1, ncclFloat32, 1 - me.rank, me.comm, me.stream);
    cudaSetDevice(me.rank);
    in_group[me.rank] = me.rank == 0 ? ncclGroupEnd() : ncclInvalidUsage;
    if (me.rank == 0) ncclSend(x.data, 2, ncclFloat32, 1, me.comm, me.stream);
    else ncclRecv(x.data, 1, ncclFloat32, 0, me.comm, me.stream);
    if (me.rank == 1) lengths[1] = cudaStreamSynchronize(me.stream);
    over.arrive_and_wait();
    ncclCommAbort(me.comm);  // or rank 0 would wait for ever
    me.comm = nullptr;
  });
  for (int r = 0; r < 2; ++r) {
    CHECK(stranger[r] == ncclInvalidArgument);
    CHECK(elsewhere[r] == ncclInvalidUsage);
    CHECK(in_group[r] == ncclInvalidUsage);
  }
  CHECK(lengths[1] == cudaErrorIllegalAddress);
  CHECK(contains(emulator::last_fault(), "rank 0 sent 8 bytes, and rank 1 waits for 4"));
}

TEST_CASE("NCCL: collectives between GPUs have the values and derivatives, to order 3, of one process") {
  for (const emulator::Order order : emulator::testing::kOrders) {
    const Machine machine(4);
    emulator::settings().order = order;
    for (int size = order == emulator::Order::forward ? 1 : 3; size <= 4; ++size) {
      RankThreads ranks(size, nullptr);
      nestgrad::testing::check_collectives(ranks, [](int rank) { return Device::cuda(rank); });
    }
    CHECK(emulator::calls("ncclSend") > 0);
    CHECK(emulator::calls("cudaGraphLaunch") > 0);
  }
}

TEST_CASE("A plan runs on its own GPU, whichever one the thread used last") {
  const Machine machine(2);
  const nestgrad::Function f = nestgrad::trace(
      nestgrad::TraceFn([](const nestgrad::Tensors& t) { return nestgrad::Tensors{t[0] + t[0]}; }),
      {nestgrad::Spec{DType::f32, {3}}});
  const nestgrad::Function there = f.to(Device::cuda(1));
  const nestgrad::Array x = nestgrad::Array::full(DType::f32, {3}, 2).to(Device::cuda(1));
  for (int i = 0; i < 2; ++i) {  // recorded, and replayed
    nestgrad::Array y;
    std::string error;
    std::jthread([&] {
      try {
        y = there({x})[0];
      } catch (const nestgrad::Error& e) {
        error = e.what();
      }
    }).join();
    CHECK(error == "");
    CHECK(y.to(Device::cpu()).at(2) == 4);
    cudaSetDevice(0);
  }
}

TEST_CASE("NCCL: without it bytes go through the host, and runs are not recorded") {
  const Machine machine(3);
  std::string why = "[cuda] ncclGetVersion: unhandled system error";
  SUBCASE("a library that does not load") {
    for (int nth = 1; nth <= 3; ++nth) emulator::fail_call("ncclGetVersion", ncclSystemError, nth);
  }
  SUBCASE("one rank has none") { emulator::fail_call("ncclGetVersion", ncclSystemError, 2); }
  SUBCASE("it is not wanted") {
    setenv("NESTGRAD_NCCL", "none", 1);
    why = "NESTGRAD_NCCL=none";
  }
  for (const Outcome& o : sums(3, std::chrono::minutes(1), [](int) {})) {
    CHECK(o.error.empty());
    CHECK(o.sum.at(4) == 6);
    CHECK(contains(o.plan, "3 processes: collectives through the host (rank "));
    CHECK(contains(o.plan, why));
  }
  unsetenv("NESTGRAD_NCCL");
  CHECK(emulator::calls("ncclCommInitRank") == 0);
  CHECK(emulator::calls("cudaGraphLaunch") == 0);
}

TEST_CASE("NCCL: a name that is none is an error") {
  const Machine machine(2);
  setenv("NESTGRAD_NCCL", "off", 1);
  for (const Outcome& o : sums(2)) CHECK(contains(o.error, "NESTGRAD_NCCL is 'off'; it must be none"));
  unsetenv("NESTGRAD_NCCL");
  for (const Outcome& o : sums(2)) CHECK(o.sum.at(0) == 3);
}

TEST_CASE("NCCL: what fails to begin is said by all ranks") {
  const Machine machine(2);
  emulator::fail_call("ncclGetUniqueId", ncclSystemError);
  for (const Outcome& o : sums(2)) CHECK(contains(o.error, "ncclGetUniqueId: unhandled system error"));
}

TEST_CASE("NCCL: a rank that does not come is waited for no longer than the stall limit") {
  const Machine machine(2);
  emulator::fail_call("ncclCommInitRank", ncclInternalError);
  const std::vector<Outcome> out = sums(2, std::chrono::milliseconds(500));
  int internal = 0, waited = 0;
  for (const Outcome& o : out) {
    internal += o.error.find("ncclCommInitRank: internal error") != std::string::npos;
    waited += o.error.find("has waited for the GPUs of others for 0.5 s") != std::string::npos;
  }
  CHECK(internal == 1);
  CHECK(waited == 1);
}

TEST_CASE("NCCL: a rank that falls silent is noticed after the stall limit, and the device goes on") {
  const Machine machine(2);
  const std::vector<Outcome> out = sums(2, std::chrono::milliseconds(500), [](int rank) {
    if (rank == 1) throw nestgrad::ProcessError("gone");
  });
  CHECK(out[1].error == "gone");
  CHECK(contains(out[0].error, "rank 0 of 2 has waited for the GPUs of others for 0.5 s"));
  CHECK(contains(out[0].error, "--resume"));
  for (const Outcome& o : sums(2)) {
    CHECK(o.sum.at(0) == 3);
    CHECK(contains(o.plan, "2 processes: collectives by NCCL 2.28.9"));
  }
}

TEST_CASE("NCCL: an error that it reports ends the wait") {
  const Machine machine(2);
  const std::vector<Outcome> out = sums(2, std::chrono::minutes(1), [](int rank) {
    if (rank == 1) throw nestgrad::ProcessError("gone");
    emulator::fail_call("ncclCommGetAsyncError", ncclRemoteError);
  });
  CHECK(contains(out[0].error, "an exchange between GPUs failed at rank 0 of 2 (remote process exited"));
}

TEST_SUITE_END();
