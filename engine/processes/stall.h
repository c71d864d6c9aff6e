// What waits for other processes in a library, and cannot be told to stop.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <thread>

namespace nestgrad {

// NESTGRAD_STALL_LIMIT, or ten minutes. ConfigError where it is no number of seconds from 0.1 to 1000000.
std::chrono::milliseconds asked_stall_limit();

// Calls fn, which does not throw, on a thread of its own. False: it has not returned within the limit, and is left to itself.
inline bool returns_within(std::chrono::milliseconds limit, std::function<void()> fn) {
  std::promise<void> done;
  std::future<void> ready = done.get_future();
  std::thread([done = std::move(done), fn = std::move(fn)]() mutable {
    fn();
    done.set_value();
  }).detach();
  return ready.wait_for(limit) == std::future_status::ready;
}

}  // namespace nestgrad
