#include "cuda_emulator/thread.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <string_view>

#include "cuda_emulator/block.h"

namespace nestgrad::emulator {

namespace {

// Ends the thread that runs, and with it the kernel. The text is complete before: nothing on the stack of the
// thread is destroyed.
[[noreturn]] void stop() {
  Fiber::give_way();
  std::abort();  // a stopped thread is never resumed
}

}  // namespace

void meet_block(Where where) {
  Thread& me = *block.running;
  void* edge = &block.edges->block[block.turn];
  me.state = State::waiting;
  me.call = "__syncthreads";
  me.where = where;
  me.mask = 0;
  race_release(edge);
  if (++block.arrived == block.threads.size()) {
    const auto elsewhere = [&](const Thread& t) {
      return t.where.line() != where.line() || std::string_view(t.where.file_name()) != where.file_name();
    };
    if (std::ranges::any_of(block.threads, elsewhere)) {
      block.fault = Fault{cudaErrorLaunchFailure, standstill()};
      stop();
    }
    for (Thread& thread : block.threads) thread.state = State::ready;
    block.arrived = 0;
    block.turn = !block.turn;
  }
  Fiber::give_way();
  race_acquire(edge);
}

Met meet_lanes(const char* call, unsigned mask, std::uint64_t value, unsigned source, Where where) {
  Thread& me = *block.running;
  const std::size_t first = std::size_t(&me - block.threads.data()) / kLanes * kLanes;
  Warp& warp = block.warps[first / kLanes];
  if ((mask >> here.lane & 1) == 0) {
    block.fault = Fault{cudaErrorLaunchFailure,
                        fmt::format("{}: calls {} ({}) for lanes {:#010x}, which do not include its own, {}",
                                    place_of(me), call, text_of(where), mask, here.lane)};
    stop();
  }
  me = {me.index, me.fiber, State::waiting, call, where, mask, source, value, {}};
  warp.waiting |= 1u << here.lane;

  const auto for_each_lane = [&](auto&& fn) {
    for (unsigned lanes = mask; lanes != 0; lanes &= lanes - 1) fn(unsigned(std::countr_zero(lanes)));
  };
  bool all_here = (warp.waiting & mask) == mask;
  if (all_here)
    for_each_lane([&](unsigned lane) {
      const Thread& other = block.threads[first + lane];
      all_here = all_here && other.call == call && other.mask == mask && other.where.line() == where.line();
    });
  if (all_here) {
    unsigned votes = 0;
    for_each_lane([&](unsigned lane) { votes |= unsigned{block.threads[first + lane].value != 0} << lane; });
    for_each_lane([&](unsigned lane) {
      Thread& other = block.threads[first + lane];
      const bool in_mask = mask >> other.source & 1;
      other.met = {in_mask ? block.threads[first + other.source].value : ~std::uint64_t{0}, votes};
      other.state = State::ready;
    });
    warp.waiting &= ~mask;
    if (mask == warp.lanes) warp.turn = !warp.turn;
  }
  Fiber::give_way();
  return me.met;
}

void sync_lanes(unsigned mask, Where where) {
  const std::size_t index = std::size_t(block.running - block.threads.data()) / kLanes;
  Warp& warp = block.warps[index];
  Edges::Warp& edges = block.edges->warps[index];
  mask &= warp.lanes;
  void* edge = mask == warp.lanes ? &edges.turn[warp.turn] : &edges.part_of_warp;
  race_release(edge);
  meet_lanes("__syncwarp", mask, 0, 0, where);
  race_acquire(edge);
}

void stop_kernel(const char* reason, Where where) {
  block.fault = Fault{cudaErrorLaunchFailure,
                      fmt::format("{}: {} ({})", place_of(*block.running), reason, text_of(where))};
  stop();
}

}  // namespace nestgrad::emulator
