// Recorder: what a profiled run notes of each instruction; engine/run/profile.h is for users.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/plan/program.h"
#include "engine/run/profile.h"

namespace nestgrad {

class Recorder {
 public:
  // All runs of one instruction.
  struct Tally {
    std::int64_t runs = 0, recomputed_runs = 0;
    std::int64_t ns = 0, recomputed_ns = 0;  // own time
    std::int64_t first_begin_ns = 0;
  };

  // Instruction i, as Instruction::entry counts, leaves at most quotas[i] events: its first.
  explicit Recorder(std::vector<std::int64_t> quotas) : quotas_(std::move(quotas)), tallies_(quotas_.size()) {
    std::int64_t events = 0;
    for (std::int64_t quota : quotas_) events += quota;
    events_.reserve(static_cast<std::size_t>(events));
    start_ = Clock::now();
  }

  // A program is about to run: its first instruction begins now.
  void begin() { last_ns_ = now_ns(); }

  // Begins where the instruction before ended, so that each costs one look at the clock.
  class Timed {
   public:
    Timed(const Frame& frame, const Instruction& instruction)
        : frame_(frame),
          recorder_(*frame.recorder),
          entry_(static_cast<std::size_t>(instruction.entry)),
          begin_ns_(recorder_.last_ns_),
          around_ns_(std::exchange(recorder_.inner_ns_, 0)) {}
    ~Timed() {
      const std::int64_t end_ns = recorder_.last_ns_ = recorder_.now_ns();
      recorder_.note(entry_, frame_, begin_ns_, end_ns - begin_ns_);
      recorder_.inner_ns_ = around_ns_ + (end_ns - begin_ns_);
    }
    Timed(const Timed&) = delete;
    Timed& operator=(const Timed&) = delete;

   private:
    const Frame& frame_;
    Recorder& recorder_;
    std::size_t entry_;
    std::int64_t begin_ns_;
    std::int64_t around_ns_;  // the time of those before it in the same program
  };

  std::int64_t now_ns() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start_).count();
  }
  const std::vector<Tally>& tallies() const { return tallies_; }
  std::vector<TraceEvent>& events() { return events_; }  // in the order in which they ended

 private:
  using Clock = std::chrono::steady_clock;

  void note(std::size_t entry, const Frame& frame, std::int64_t begin_ns, std::int64_t ns) {
    Tally& t = tallies_[entry];
    if (t.runs == 0) t.first_begin_ns = begin_ns;
    if (t.runs < quotas_[entry])
      events_.push_back({static_cast<int>(entry), begin_ns, ns, frame.step, frame.slice, frame.recomputed});
    const std::int64_t own_ns = ns - inner_ns_;
    ++t.runs, t.ns += own_ns;
    if (frame.recomputed) ++t.recomputed_runs, t.recomputed_ns += own_ns;
  }

  std::vector<std::int64_t> quotas_;
  std::vector<Tally> tallies_;
  std::vector<TraceEvent> events_;
  Clock::time_point start_;
  std::int64_t last_ns_ = 0;   // when the last instruction ended, or its program began
  std::int64_t inner_ns_ = 0;  // the time of what has run inside the instruction that is running
};

}  // namespace nestgrad
