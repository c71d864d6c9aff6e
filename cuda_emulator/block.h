// The block that runs: where each of its threads is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cuda_emulator/fiber.h"
#include "cuda_emulator/kernel.h"
#include "cuda_emulator/sanitizers.h"
#include "cuda_emulator/thread.h"

namespace nestgrad::emulator {

constexpr unsigned kLanes = 32;

enum class State { ready, waiting, done };

struct Thread {
  uint3 index;
  Fiber* fiber = nullptr;  // none before it starts and after it is done
  State state = State::ready;
  // What it waits for, what it brings, what it gets.
  const char* call = nullptr;
  Where where;
  unsigned mask = 0, source = 0;
  std::uint64_t value = 0;
  Met met{};
};

// Addresses that stand for an order of memory accesses, for the race detector. Two in turn for each kind of
// meeting: with one, whoever leaves late would seem to have waited for those who are at the next one already.
struct Edges {
  struct Warp {
    char turn[2], part_of_warp;
  };
  char block[2];
  Warp warps[kLanes];
};

struct Warp {
  unsigned lanes = 0;    // that exist
  unsigned waiting = 0;  // lanes that wait for others of the warp
  bool turn = false;
};

struct Block {
  const Launch* launch = nullptr;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  unsigned arrived = 0;  // threads at the block's barrier
  bool turn = false;
  Edges* edges = nullptr;
  Thread* running = nullptr;
  std::optional<Fault> fault;  // of the thread that runs
};

// One kernel runs at a time, see queue.h. Never destroyed: what is static elsewhere may wait for work late.
extern Block& block;

inline void race_release(void* edge) {
  if (finds_races()) __tsan_release(edge);
}
inline void race_acquire(void* edge) {
  if (finds_races()) __tsan_acquire(edge);
}

std::string text_of(const uint3& v);
std::string text_of(const Where& where);
std::string place_of(const Thread& thread);  // launch, block, thread
std::string standstill();                    // where the threads of the block are, none of which can go on

}  // namespace nestgrad::emulator
