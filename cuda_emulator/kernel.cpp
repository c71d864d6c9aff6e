#include "cuda_emulator/kernel.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

#include "cuda_emulator/block.h"
#include "cuda_emulator/shared_memory.h"

namespace nestgrad::emulator {

namespace {

constexpr std::uint64_t kMostBlocks = 1u << 28;  // hours

// Fibers that wait for work. The one that comes back last goes out first, its stack is in the cache. But the
// race detector knows a thread by its fiber, so for it the one that waits longest goes out: twice as many as
// a block has threads keep apart one block and the next.
class Fibers {
 public:
  void reserve(std::size_t threads) {
    if (!finds_races()) return;
    while (idle_.size() < 2 * threads) idle_.push_back(std::make_unique<Fiber>());
  }
  Fiber* take() {
    if (idle_.empty()) return new Fiber;
    Fiber* fiber = idle_.front().release();
    idle_.pop_front();
    return fiber;
  }
  void give_back(Fiber* fiber) {
    if (finds_races()) idle_.emplace_back(fiber);
    else idle_.emplace_front(fiber);
  }

 private:
  std::deque<std::unique_ptr<Fiber>> idle_;
};

Fibers& fibers = *new Fibers;
SharedMemory& shared = *new SharedMemory;

class SignalHandlers {
 public:
  SignalHandlers() {
    struct sigaction action {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask_);
    sigaction(SIGSEGV, &action, &segv_);
    sigaction(SIGBUS, &action, &bus_);
  }
  ~SignalHandlers() { restore(); }

 private:
  static void on_signal(int, siginfo_t* info, void*) {
    if (!Fiber::running()) return restore();  // and what was done is done again
    block.fault = Fault{
        info->si_code == SI_KERNEL ? cudaErrorMisalignedAddress : cudaErrorIllegalAddress, {}, info->si_addr};
    pthread_sigmask(SIG_SETMASK, &mask_, nullptr);  // the handler does not return
    Fiber::give_way();
  }
  static void restore() {
    sigaction(SIGSEGV, &segv_, nullptr);
    sigaction(SIGBUS, &bus_, nullptr);
  }
  static inline struct sigaction segv_, bus_;
  static inline sigset_t mask_;
};

Fault explained(Fault fault) {
  if (fault.code == cudaErrorMisalignedAddress && fault.text.empty())
    fault.text = place_of(*block.running) + ": a misaligned address was accessed";
  if (!fault.text.empty()) return fault;
  fault.text = fmt::format("{}: illegal access to {}", place_of(*block.running), fault.address);
  if (const auto bytes = shared.beyond(fault.address))
    fault.text += fmt::format(", {} bytes beyond the end of the {} bytes of shared memory", *bytes,
                              block.launch->shared_bytes);
  return fault;
}

std::vector<unsigned> turns(Order order, unsigned count) {
  std::vector<unsigned> out(count);
  std::iota(out.begin(), out.end(), 0u);
  if (order == Order::reverse) std::ranges::reverse(out);
  if (order == Order::shuffled) std::ranges::shuffle(out, std::mt19937(count));
  return out;
}

// Edges: what the host did before the kernel, and what the kernel did before the host goes on.
char kernel_begins, kernel_ends;

void thread_body() {
  race_acquire(&kernel_begins);
  block.launch->call();
  race_release(&kernel_ends);
}

uint3 unravel(unsigned i, const dim3& extent) {
  return {i % extent.x, i / extent.x % extent.y, i / extent.x / extent.y};
}

void begin_block(unsigned index) {
  // The same edge for all blocks would order one block after another. (Those of 64 blocks ago do no harm.)
  static Edges edges[64];
  static std::size_t blocks = 0;
  block.edges = &edges[blocks++ % 64];
  block.arrived = 0;
  for (Thread& thread : block.threads) thread.fiber = nullptr, thread.state = State::ready;
  for (Warp& warp : block.warps) warp.waiting = 0;
  here.block = unravel(index, block.launch->grid);
  here.shared = shared.prepare(block.launch->shared_bytes);
  race_release(&kernel_begins);
}

void abandon_threads() {
  for (Thread& thread : block.threads) delete std::exchange(thread.fiber, nullptr);
  race_acquire(&kernel_ends);
}

// Lets a thread run until it waits or is done.
void step(Thread& thread) {
  if (thread.fiber == nullptr) {
    thread.fiber = fibers.take();
    thread.fiber->start(thread_body);
  }
  block.running = &thread;
  here.thread = thread.index;
  here.lane = unsigned(&thread - block.threads.data()) % kLanes;
  const bool waits = thread.fiber->resume();
  if (block.fault) {
    abandon_threads();
    throw explained(*std::exchange(block.fault, std::nullopt));
  }
  if (waits) return;
  thread.state = State::done;
  fibers.give_back(std::exchange(thread.fiber, nullptr));
}

void run_block(unsigned index, const std::vector<unsigned>& order) {
  begin_block(index);
  for (bool all_done = false; !all_done;) {
    bool moved = false;
    all_done = true;
    for (const unsigned i : order) {
      Thread& thread = block.threads[i];
      if (thread.state == State::ready) step(thread), moved = true;
      all_done = all_done && thread.state == State::done;
    }
    if (!moved && !all_done) throw Fault{cudaErrorLaunchFailure, standstill()};
  }
  if (shared.damaged())
    throw Fault{cudaErrorIllegalAddress,
                fmt::format("[{}] block {} wrote outside of its {} bytes of shared memory",
                            describe(*block.launch), text_of(here.block), block.launch->shared_bytes)};
}

void begin_kernel(const Launch& launch) {
  const unsigned threads = launch.block.x * launch.block.y * launch.block.z;
  block.launch = &launch;
  block.threads.assign(threads, Thread{});
  block.warps.assign((threads + kLanes - 1) / kLanes, Warp{});
  for (unsigned i = 0; i < threads; ++i) {
    block.threads[i].index = unravel(i, launch.block);
    block.warps[i / kLanes].lanes |= 1u << i % kLanes;
  }
  here.block_extent = launch.block;
  here.grid_extent = launch.grid;
  fibers.reserve(threads);
}

}  // namespace

void run_kernel(const Launch& launch, Order order) {
  const std::uint64_t blocks = std::uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  if (blocks > kMostBlocks)
    throw Fault{cudaErrorLaunchTimeout, "[" + describe(launch) + "] too long for the emulator"};
  begin_kernel(launch);
  const SignalHandlers handlers;
  const std::vector<unsigned> threads = turns(order, unsigned(block.threads.size()));
  try {
    for (const unsigned index : turns(order, unsigned(blocks))) run_block(index, threads);
  } catch (const Fault&) {
    abandon_threads();
    throw;
  }
  race_acquire(&kernel_ends);
}

}  // namespace nestgrad::emulator
