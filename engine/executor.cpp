// The loop that runs a plan.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/backend.h"
#include "engine/index.h"
#include "engine/program.h"
#include "engine/recorder.h"
#include "engine/threads.h"

namespace nestgrad {

namespace {

// Enough for every op; concat with more operands is split by its builder.
constexpr std::size_t kMaxOperands = 64;

std::byte* resolve(const Place& place, const Program& program, const Frame& frame) {
  switch (place.kind) {
    case Place::Kind::arena:
      return frame.arena + place.at;
    case Place::Kind::external:
      return frame.external[place.at];
    case Place::Kind::literal:
      return const_cast<std::byte*>(program.literals[place.at].data());
    case Place::Kind::none:
      break;
  }
  return nullptr;
}

void copy(const Frame& frame, std::byte* to, const std::byte* from, std::size_t bytes) {
  if (frame.backend) frame.backend->copy(from, to, bytes);
  else std::memcpy(to, from, bytes);
}

template <class T>
void add_up(const std::byte* terms, std::size_t count, std::byte* sum) {
  const T* x = reinterpret_cast<const T*>(terms);
  T* y = reinterpret_cast<T*>(sum);
  for (std::size_t i = 0; i < count; ++i) y[i] += x[i];
}

// One slice of a scan, run by one worker.
class SliceRun {
 public:
  SliceRun(ScanStep& scan, Program& parent, const Frame& frame, int worker, int slice)
      : scan_(scan),
        parent_(parent),
        frame_(frame),
        worker_(worker),
        slice_(slice),
        s_(uz(slice)),
        state_(scan.workers[uz(worker)]),
        memory_(frame.arena + scan.memory + uz(worker) * scan.memory_bytes) {}

  // All steps, in iteration order.
  void forward() {
    state_.slice = slice_, state_.segment = -1;
    for (std::size_t i = 0; i < scan_.carries.size(); ++i) {
      const ScanStep::Carry& c = scan_.carries[i];
      if (c.part.partial && !c.part.owner[s_])  // of a sum, the first slice has what it begins with
        state_.carry_in[i] = static_cast<std::byte*>(std::memset(memory_ + c.pong, 0, c.part.bytes));
      else state_.carry_in[i] = resolve(c.init, parent_, frame_) + c.part.at[s_];
    }
    for (int i = 0; i < scan_.steps; ++i) {
      const int time = scan_.reverse ? scan_.steps - 1 - i : i;
      if (scan_.every > 0 && (i == 0 || segment_of(time) != state_.segment)) {
        state_.segment = segment_of(time);
        for (std::size_t c = 0; c < scan_.carries.size(); ++c)
          copy(frame_, checkpoint(c, state_.segment), state_.carry_in[c], scan_.carries[c].part.bytes);
        begin_stacks(time, true);
      }
      if (scan_.every == 0 && i == 0) begin_stacks(time, true);
      step(time, i, i + 1 == scan_.steps, true);
    }
  }

  // The value of a lazy stack at `time`, recomputed with its whole segment if need be.
  std::byte* pull(std::size_t stack, int time) {
    const int segment = segment_of(time);
    if (state_.slice != slice_ || state_.segment != segment) recompute(segment);
    return lazy_slot(scan_.stacks[stack], time);
  }

 private:
  std::size_t at(const Stepped& where, int time) const { return where.at[s_] + uz(time) * where.stride; }
  int segment_of(int time) const { return time / scan_.every; }

  void recompute(int segment) {
    const int begin = segment * scan_.every;
    const int end = std::min(begin + scan_.every, scan_.steps);
    for (std::size_t c = 0; c < scan_.carries.size(); ++c) state_.carry_in[c] = checkpoint(c, segment);
    begin_stacks(scan_.reverse ? end - 1 : begin, false);
    for (int i = 0; i < end - begin; ++i) step(scan_.reverse ? end - 1 - i : begin + i, i, false, false);
    state_.slice = slice_, state_.segment = segment;
  }

  // Where the value of a stack at `time` belongs.
  std::byte* slot_of(const ScanStep::Stack& s, int time, bool store) const {
    if (s.lazy) return lazy_slot(s, time);
    if (!store || !s.part.owner[s_]) return memory_ + s.buffer;
    return resolve(s.stored, parent_, frame_) + at(s.where, time);
  }

  // The carries with which `time` begins, into their stacks: no step of this run or segment comes before.
  void begin_stacks(int time, bool store) {
    for (std::size_t c = 0; c < scan_.carries.size(); ++c) {
      if (scan_.carries[c].stack < 0) continue;
      const ScanStep::Stack& s = scan_.stacks[uz(scan_.carries[c].stack)];
      if (s.lazy || (store && time == first_time()))
        copy(frame_, slot_of(s, time, store), state_.carry_in[c], s.part.bytes);
    }
  }
  int first_time() const { return scan_.reverse ? scan_.steps - 1 : 0; }

  // Where the carry that the step at `time` makes is written.
  std::byte* next_carry(const ScanStep::Carry& c, int time, int parity, bool last, bool store) const {
    if (last) return c.final_value.kind != Place::Kind::none ? final_of(c, parity) : working(c, parity);
    if (c.stack < 0) return working(c, parity);
    const ScanStep::Stack& s = scan_.stacks[uz(c.stack)];
    const int next = scan_.reverse ? time - 1 : time + 1;
    const bool keeps =
        s.lazy ? next >= 0 && segment_of(next) == segment_of(time) : store && s.part.owner[s_] != 0;
    return keeps ? slot_of(s, next, store) : working(c, parity);
  }

  void step(int time, int parity, bool last, bool store) {
    std::size_t k = 0;
    auto& slot = state_.externals;
    for (std::byte* in : state_.carry_in) slot[k++] = in;
    for (const ScanStep::PerStep& x : scan_.xs)
      slot[k++] = x.producer >= 0 ? producer(x).pull(x.stack, time)
                                  : resolve(x.source, parent_, frame_) + at(x.where, time);
    for (const ScanStep::Const& c : scan_.consts)
      slot[k++] = resolve(c.source, parent_, frame_) + c.part.at[s_];
    const std::size_t first_out = k;
    for (const ScanStep::Carry& c : scan_.carries) slot[k++] = next_carry(c, time, parity, last, store);
    for (const ScanStep::Stack& s : scan_.stacks)
      if (!s.of_carry) slot[k++] = slot_of(s, time, store);
    execute(state_.body, {memory_ + scan_.body_arena, slot.data(), frame_.backend, frame_.recorder, time,
                          slice_, frame_.recomputed || !store});
    for (std::size_t c = 0; c < scan_.carries.size(); ++c) state_.carry_in[c] = slot[first_out + c];
  }

  SliceRun producer(const ScanStep::PerStep& x) const {
    ScanStep& other = *parent_.code[uz(x.producer)].scan;
    return {other, parent_, frame_, worker_, slice_};
  }
  std::byte* working(const ScanStep::Carry& c, int parity) const {
    return memory_ + (parity % 2 ? c.pong : c.ping);
  }
  std::byte* final_of(const ScanStep::Carry& c, int parity) const {
    if (c.part.partial) return frame_.arena + c.terms + s_ * c.part.bytes;
    return c.part.owner[s_] ? resolve(c.final_value, parent_, frame_) + c.part.at[s_] : working(c, parity);
  }
  std::byte* lazy_slot(const ScanStep::Stack& s, int time) const {
    return memory_ + s.buffer + uz(time % scan_.every) * s.part.bytes;
  }
  std::byte* checkpoint(std::size_t c, int segment) const {
    const ScanStep::Carry& carry = scan_.carries[c];
    const std::size_t place = uz(segment * scan_.slices) + s_;
    return frame_.arena + carry.checkpoints + place * carry.part.bytes;
  }

  ScanStep& scan_;
  Program& parent_;
  const Frame& frame_;
  int worker_, slice_;
  std::size_t s_;
  ScanStep::Worker& state_;
  std::byte* memory_;
};

// Last values of which the slices have terms: added up in the order of the slices.
void finish_sums(const ScanStep& scan, const Program& parent, const Frame& frame) {
  for (const ScanStep::Carry& c : scan.carries) {
    if (!c.part.partial || c.final_value.kind == Place::Kind::none) continue;
    for (std::size_t s = 0; s < uz(scan.slices); ++s) {
      const std::byte* term = frame.arena + c.terms + s * c.part.bytes;
      std::byte* sum = resolve(c.final_value, parent, frame) + c.part.at[s];
      const std::size_t count = c.part.bytes / size_of(c.dtype);
      if (c.part.owner[s]) std::memcpy(sum, term, c.part.bytes);
      else if (c.dtype == DType::f32) add_up<float>(term, count, sum);
      else if (c.dtype == DType::f64) add_up<double>(term, count, sum);
      else add_up<std::int32_t>(term, count, sum);
    }
  }
}

// A scan whose steps a backend has in one kernel, which runs once for each segment.
class FusedRun {
 public:
  FusedRun(ScanStep& scan, Program& parent, const Frame& frame)
      : scan_(scan), parent_(parent), frame_(frame) {
    length_ = scan.every;
    for (const ScanStep::PerStep& x : scan.xs)
      if (x.producer >= 0) length_ = producer(x).every;
    if (length_ == 0) length_ = scan.steps;
    segments_ = (scan.steps + length_ - 1) / length_;
  }

  void forward() {
    for (int i = 0; i < segments_; ++i) queue(i, true);
  }

 private:
  ScanStep& producer(const ScanStep::PerStep& x) const { return *parent_.code[uz(x.producer)].scan; }
  int segment_at(int i) const { return scan_.reverse ? segments_ - 1 - i : i; }
  int copy_at(int i) const { return scan_.every ? segment_at(i) : i % 2; }

  // The lazy stacks shall hold this segment.
  void hold(int segment) {
    if (scan_.fused_segment != segment) queue(scan_.reverse ? segments_ - 1 - segment : segment, false);
  }

  // The i-th segment in the scan's direction.
  void queue(int i, bool store) {
    const int segment = segment_at(i);
    for (const ScanStep::PerStep& x : scan_.xs)
      if (x.producer >= 0) FusedRun(producer(x), parent_, frame_).hold(segment);
    const int begin = segment * length_, end = std::min(begin + length_, scan_.steps);
    const bool last = i + 1 == segments_;
    std::vector<std::byte*> addresses;
    for (const Place& place : scan_.fused->places) addresses.push_back(resolve(place, parent_, frame_));
    scan_.fused->run(addresses.data(), {.first = scan_.reverse ? end - 1 : begin,
                                        .count = end - begin,
                                        .from_copy = i == 0 ? -1 : copy_at(i),
                                        .to_copy = last || !store ? -1 : copy_at(i + 1),
                                        .last = last && store,
                                        .store = store});
    scan_.fused_segment = segment;
  }

  ScanStep& scan_;
  Program& parent_;
  const Frame& frame_;
  int length_ = 0, segments_ = 0;
};

void run_scan(ScanStep& scan, Program& parent, const Frame& frame) {
  if (scan.fused) return FusedRun(scan, parent, frame).forward();
  // What a worker recomputed in an earlier run is of other numbers, and this run may give it nothing to do.
  for (ScanStep::Worker& w : scan.workers) w.slice = w.segment = -1;
  const auto slice = [&](int part, int worker) { SliceRun(scan, parent, frame, worker, part).forward(); };
  const auto workers = static_cast<int>(scan.workers.size());
  if (frame.recorder)
    for (int part = 0; part < scan.slices; ++part) slice(part, part % workers);
  else in_parallel(scan.slices, workers, std::ref(slice));
  finish_sums(scan, parent, frame);
}

struct Untimed {
  Untimed(const Frame&, const Instruction&) {}
};

// Timed: told of each instruction as long as it runs.
template <class Timed>
void run(Program& program, const Frame& frame) {
  const std::byte* in[kMaxOperands];
  for (Instruction& ins : program.code) {
    [[maybe_unused]] const Timed timed(frame, ins);
    if (ins.scan) {
      run_scan(*ins.scan, program, frame);
      continue;
    }
    for (std::size_t i = 0; i < ins.in.size(); ++i) in[i] = resolve(ins.in[i], program, frame);
    if (ins.cluster) {
      std::byte* outs[kMostClusterOps];
      for (std::size_t i = 0; i < ins.outs.size(); ++i) outs[i] = resolve(ins.outs[i], program, frame);
      ins.cluster(in, outs);
      continue;
    }
    std::byte* out = resolve(ins.out, program, frame);
    if (!ins.op) {
      copy(frame, out, in[0], ins.bytes);
      continue;
    }
    try {
      ins.kernel(in, out);
    } catch (const ValueError& e) {
      throw ValueError(fmt::format("{} (at {})", e.what(), describe(ins.loc)));
    }
  }
}

}  // namespace

void execute(Program& program, const Frame& frame) {
  if (!frame.recorder) return run<Untimed>(program, frame);
  frame.recorder->begin();
  run<Recorder::Timed>(program, frame);
}

}  // namespace nestgrad
