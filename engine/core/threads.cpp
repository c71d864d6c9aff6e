#include "engine/core/threads.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/index.h"
#include "engine/core/process_wide.h"

namespace nestgrad {

namespace {

constexpr int kMost = 256;

int count_of_environment() {
  const int cores = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMost);
  const char* asked = std::getenv("NESTGRAD_THREADS");
  if (!asked) return cores;
  const std::string_view text = asked;
  int threads = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), threads);
  if (error != std::errc() || end != text.data() + text.size() || threads < 1 || threads > kMost)
    throw ConfigError(
        fmt::format("[threads] NESTGRAD_THREADS is '{}'; it must be a number from 1 to {}", text, kMost));
  return threads;
}

// What set_thread_count() was given; 0: nothing yet.
std::atomic<int> given_count{0};

// A thread that sleeps takes longer to wake than most parts take to do, so it looks for a while first.
void wait_for_change(const std::atomic<int>& value, int seen) {
  constexpr int kLooks = 2000;  // some 50 us
  for (int i = 0; i < kLooks; ++i) {
    if (value.load() != seen) return;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  value.wait(seen);
}

thread_local bool inside = false;  // of a part, or of a SingleThreadScope

class Pool {
 public:
  // False: another thread has the pool, or the program ends; nothing is done then.
  bool run(int parts, int workers, const std::function<void(int, int)>& fn) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || stopping_) return false;
    while (static_cast<int>(threads_.size()) < workers - 1) start_thread();
    fn_ = &fn, parts_ = parts, workers_ = workers, next_ = 0;
    errors_.assign(uz(parts), nullptr);
    busy_ = static_cast<int>(threads_.size());
    job_.fetch_add(1);
    job_.notify_all();
    work(0);
    for (int left = busy_; left > 0; left = busy_) wait_for_change(busy_, left);
    for (const std::exception_ptr& e : errors_)
      if (e) std::rethrow_exception(e);
    return true;
  }

  // Ends the threads. Where exit() is called while they work, they are left to it: they need nothing that goes.
  void end() {
    if (inside) return;
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return;
    stopping_ = true;  // first: who sees the new job without it waits for another, and is never joined
    job_.fetch_add(1);
    job_.notify_all();
    threads_.clear();
  }

 private:
  void start_thread() {
    const int worker = static_cast<int>(threads_.size()) + 1;
    try {
      threads_.emplace_back([this, worker, seen = job_.load()]() mutable { serve(worker, seen); });
    } catch (const std::system_error& e) {
      throw DeviceError(
          fmt::format("[threads] the system starts no more than {} threads for this program ({}); set "
                      "NESTGRAD_THREADS to that, or raise the limits of processes and memory (ulimit -u, -v)",
                      worker, e.code().message()));
    }
  }

  void serve(int worker, int seen) {
    for (;;) {
      wait_for_change(job_, seen);
      if (stopping_) return;
      seen = job_;
      if (worker < workers_) work(worker);
      if (busy_.fetch_sub(1) == 1) busy_.notify_one();
    }
  }

  void work(int worker) {
    inside = true;
    for (int part = next_++; part < parts_; part = next_++) {
      try {
        (*fn_)(part, worker);
      } catch (...) {
        errors_[uz(part)] = std::current_exception();
      }
    }
    inside = false;
  }

  std::mutex mutex_;
  const std::function<void(int, int)>* fn_ = nullptr;
  int parts_ = 0, workers_ = 0;
  std::atomic<int> job_ = 0, next_ = 0, busy_ = 0;
  std::atomic<bool> stopping_ = false;
  std::vector<std::exception_ptr> errors_;
  std::vector<std::jthread> threads_;
};

}  // namespace

int thread_count() {
  const int given = given_count;
  if (given > 0) return given;
  static const int asked = count_of_environment();
  return asked;
}

void set_thread_count(int threads) {
  if (threads < 1 || threads > kMost)
    throw ConfigError(fmt::format("[threads] {} threads; it must be 1 to {}", threads, kMost));
  given_count = threads;
}

SingleThreadScope::SingleThreadScope() : was_single_(std::exchange(inside, true)) {}
SingleThreadScope::~SingleThreadScope() { inside = was_single_; }

void in_parallel(int parts, int workers, const std::function<void(int part, int worker)>& fn) {
  require_function("threads", "what is to be done in parallel", fn);
  if (parts > 1 && workers > 1 && !inside && ProcessWide<Pool>::get().run(parts, workers, fn)) return;
  for (int part = 0; part < parts; ++part) fn(part, 0);
}

}  // namespace nestgrad
