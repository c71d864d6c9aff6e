// Threads: one pool for the process, for work that falls into independent parts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

namespace nestgrad {

// How many threads work: NESTGRAD_THREADS (1 to 256), or the processor's cores.
int thread_count();
// From now on: at once for products, sums and copies, for slices of scans in plans that are made after it. ConfigError outside of 1..256.
void set_thread_count(int threads);

// Calls fn(part, worker) for every part in 0..parts, worker < workers; one worker does one part at a time.
// Which worker does which part is not defined. Called from within a part, or while another thread holds the
// pool, it does all parts itself, as worker 0. An exception of the first part that failed is thrown on.
void in_parallel(int parts, int workers, const std::function<void(int part, int worker)>& fn);

// While it exists, its thread shares no work: in_parallel does all parts itself, as worker 0.
class SingleThreadScope {
 public:
  SingleThreadScope();
  ~SingleThreadScope();
  SingleThreadScope(const SingleThreadScope&) = delete;
  SingleThreadScope& operator=(const SingleThreadScope&) = delete;

 private:
  bool was_single_;
};

// Elements that a thread computes, moves or adds at once: fewer take less time than to share them, and to
// have them in another core's cache after.
constexpr std::int64_t kGrain = 1 << 17;

// fn(begin, end) for blocks of about `grain` that make up 0..n, in parallel; all in one where n is too small
// to share. fn must give the same bits however n is cut.
template <class Fn>
void in_blocks(std::int64_t n, std::int64_t grain, Fn fn) {
  if (n < 2 * grain) return fn(std::int64_t{0}, n);
  const auto part = [&](int i, int) { fn(i * grain, std::min(n, (i + 1) * grain)); };
  in_parallel(static_cast<int>((n + grain - 1) / grain), thread_count(), std::ref(part));
}

}  // namespace nestgrad
