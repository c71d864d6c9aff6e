// The loop that runs a plan.
#include <fmt/format.h>

#include <cstring>

#include "engine/program.h"

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

class ScanRun {
 public:
  ScanRun(ScanStep& scan, const Program& parent, const Frame& frame)
      : scan_(scan), parent_(parent), frame_(frame) {}

  // All steps, in iteration order.
  void forward() {
    for (std::size_t i = 0; i < scan_.carries.size(); ++i)
      scan_.carry_in[i] = resolve(scan_.carries[i].init, parent_, frame_);
    for (int i = 0; i < scan_.steps; ++i) {
      const int time = scan_.reverse ? scan_.steps - 1 - i : i;
      if (scan_.every > 0 && (i == 0 || segment_of(time) != scan_.segment)) {
        scan_.segment = segment_of(time);
        for (std::size_t c = 0; c < scan_.carries.size(); ++c)
          std::memcpy(checkpoint(c, scan_.segment), scan_.carry_in[c], scan_.carries[c].bytes);
      }
      step(time, i, i + 1 == scan_.steps, true);
    }
  }

  // The value of a lazy stack at `time`, recomputed with its whole segment if need be.
  std::byte* pull(std::size_t stack, int time) {
    const int segment = segment_of(time);
    if (scan_.segment != segment) recompute(segment);
    return lazy_slot(scan_.stacks[stack], time);
  }

 private:
  int segment_of(int time) const { return time / scan_.every; }

  void recompute(int segment) {
    const int begin = segment * scan_.every;
    const int end = std::min(begin + scan_.every, scan_.steps);
    for (std::size_t c = 0; c < scan_.carries.size(); ++c) scan_.carry_in[c] = checkpoint(c, segment);
    for (int i = 0; i < end - begin; ++i) step(scan_.reverse ? end - 1 - i : begin + i, i, false, false);
    scan_.segment = segment;
  }

  void step(int time, int parity, bool last, bool store) {
    std::size_t k = 0;
    auto& slot = scan_.externals;
    for (std::byte* in : scan_.carry_in) slot[k++] = in;
    for (const ScanStep::PerStep& x : scan_.xs)
      slot[k++] = x.producer ? ScanRun(*x.producer, parent_, frame_).pull(x.stack, time)
                             : resolve(x.source, parent_, frame_) + static_cast<std::size_t>(time) * x.stride;
    for (const Place& c : scan_.consts) slot[k++] = resolve(c, parent_, frame_);
    const std::size_t first_out = k;
    for (const ScanStep::Carry& c : scan_.carries)
      slot[k++] = last && c.final_value.kind != Place::Kind::none
                      ? resolve(c.final_value, parent_, frame_)
                      : frame_.arena + (parity % 2 ? c.pong : c.ping);
    for (const ScanStep::Stack& s : scan_.stacks)
      slot[k++] = s.lazy   ? lazy_slot(s, time)
                  : !store ? frame_.arena + s.buffer
                           : resolve(s.stored, parent_, frame_) + static_cast<std::size_t>(time) * s.stride;
    execute(scan_.body, {frame_.arena + scan_.body_arena, slot.data()});
    for (std::size_t c = 0; c < scan_.carries.size(); ++c) scan_.carry_in[c] = slot[first_out + c];
  }

  std::byte* lazy_slot(const ScanStep::Stack& s, int time) const {
    return frame_.arena + s.buffer + static_cast<std::size_t>(time % scan_.every) * s.stride;
  }
  std::byte* checkpoint(std::size_t c, int segment) const {
    return frame_.arena + scan_.carries[c].checkpoints +
           static_cast<std::size_t>(segment) * scan_.carries[c].bytes;
  }

  ScanStep& scan_;
  const Program& parent_;
  const Frame& frame_;
};

}  // namespace

void execute(Program& program, const Frame& frame) {
  const std::byte* in[kMaxOperands];
  for (Instruction& ins : program.code) {
    if (ins.scan) {
      ScanRun(*ins.scan, program, frame).forward();
      continue;
    }
    std::byte* out = resolve(ins.out, program, frame);
    for (std::size_t i = 0; i < ins.in.size(); ++i) in[i] = resolve(ins.in[i], program, frame);
    if (!ins.op) {
      std::memcpy(out, in[0], ins.bytes);
      continue;
    }
    try {
      ins.kernel(in, out);
    } catch (const ValueError& e) {
      throw ValueError(fmt::format("{} (at {})", e.what(), describe(ins.loc)));
    }
  }
}

}  // namespace nestgrad
