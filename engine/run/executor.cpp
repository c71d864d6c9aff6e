// Runs a Program: its instructions, one after the other, or the machine code that there is of them all. Scans are in
// run_scan.cpp.
#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "engine/core/index.h"
#include "engine/core/node_text.h"
#include "engine/plan/backend.h"
#include "engine/plan/body_source.h"
#include "engine/plan/native.h"
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

// Where the operands of an instruction lie: on the stack, but for one of an op that somebody gave more than concat() ever does.
struct OperandPlaces {
  static constexpr std::size_t kFew = 64;
  explicit OperandPlaces(std::size_t count) {
    if (count > kFew) many.resize(count);
  }
  const std::byte** data() { return many.empty() ? few : many.data(); }

  const std::byte* few[kFew];
  std::vector<const std::byte*> many;
};

struct Untimed {
  Untimed(const Frame&, const Instruction&) {}
};

void run(Instruction& ins, Program& program, const Frame& frame) {
  if (ins.scan) return run_scan(*ins.scan, program, frame);
  OperandPlaces places(ins.in.size());
  const std::byte** const in = places.data();
  for (std::size_t i = 0; i < ins.in.size(); ++i) in[i] = resolve(ins.in[i], program, frame);
  if (ins.cluster) {
    std::byte* outs[kMostClusterOps];
    for (std::size_t i = 0; i < ins.outs.size(); ++i) outs[i] = resolve(ins.outs[i], program, frame);
    return ins.cluster(in, outs);
  }
  std::byte* out = resolve(ins.out, program, frame);
  if (!ins.op) {
    if (frame.backend) frame.backend->copy(in[0], out, ins.bytes);
    else std::memcpy(out, in[0], ins.bytes);
    return;
  }
  try {
    ins.kernel(in, out);
  } catch (const ValueError& e) {
    throw value_error(e, program.graph->nodes(), ins.node);
  }
}

// What goes wrong on a device is thrown where it is waited for: here after each instruction, so that it names one.
void run_and_wait(Program& program, const Frame& frame) {
  for (Instruction& ins : program.code) {
    run(ins, program, frame);
    try {
      frame.backend->synchronize();
    } catch (const DeviceError& e) {
      const std::string step = frame.step < 0 ? "" : fmt::format(" of step {}", frame.step);
      throw DeviceError(fmt::format("{}; found after {}{} (at {})", e.what(), ops_of(program, ins), step,
                                    describe(ins.loc)));
    }
  }
}

// Timed: an object that lives while an instruction runs; what it measures is its own life.
template <class Timed>
void run_all(Program& program, const Frame& frame) {
  for (Instruction& ins : program.code) {
    [[maybe_unused]] const Timed timed(frame, ins);
    run(ins, program, frame);
  }
}

// Machine code that does what the instructions do, and has those done that it has no code for.
void run_compiled(CompiledBody code, Program& program, const Frame& frame) {
  struct Context {
    Program& program;
    const Frame& frame;
  } context{program, frame};
  const auto call = [](void* of, int instruction) {
    Context& c = *static_cast<Context*>(of);
    run(c.program.code[uz(instruction)], c.program, c.frame);
  };
  code(frame.arena, frame.external, program.literal_data.data(), call, &context);
}

}  // namespace

void execute(Program& program, const Frame& frame) {
  if (frame.recorder) {
    frame.recorder->begin();
    return run_all<Recorder::Timed>(program, frame);
  }
  if (frame.backend && frame.backend->waits_for_each()) return run_and_wait(program, frame);
  if (program.native)
    if (const auto code = program.native->as<CompiledBody>()) return run_compiled(code, program, frame);
  run_all<Untimed>(program, frame);
}

}  // namespace nestgrad
