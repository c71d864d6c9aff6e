// Runs a Program: its instructions, one after the other. Scans are in run_scan.cpp.
#include <fmt/format.h>

#include <cstring>

#include "engine/core/node_text.h"
#include "engine/plan/backend.h"
#include "engine/plan/program.h"
#include "engine/run/recorder.h"

namespace nestgrad {

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

namespace {

// Enough for every op; concat with more operands is split by its builder.
constexpr std::size_t kMaxOperands = 64;

struct Untimed {
  Untimed(const Frame&, const Instruction&) {}
};

// Timed: an object that lives while an instruction runs; what it measures is its own life.
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
      if (frame.backend) frame.backend->copy(in[0], out, ins.bytes);
      else std::memcpy(out, in[0], ins.bytes);
      continue;
    }
    try {
      ins.kernel(in, out);
    } catch (const ValueError& e) {
      throw value_error(e, program.graph->nodes(), ins.node);
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
