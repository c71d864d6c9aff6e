// Program: what the executor runs. A flat list of instructions whose operands are places; scan bodies are
// programs inside an instruction.
#pragma once

#include <memory>

#include "engine/arena.h"
#include "engine/backend.h"
#include "engine/cluster.h"
#include "engine/plan.h"
#include "engine/stepped.h"

namespace nestgrad {

struct Profile;  // engine/profile.h
class Recorder;  // engine/recorder.h
struct ScanStep;

struct Instruction {
  const Op* op = nullptr;  // null: copy inputs[0] to out
  Kernel kernel;
  ClusterKernel cluster;                    // several ops, with several outputs, instead of a kernel
  std::shared_ptr<const ClusterCall> call;  // what the cluster computes
  std::vector<Place> in;
  Place out;
  std::vector<Place> outs;         // of a cluster
  std::size_t bytes = 0;           // of a copy
  std::unique_ptr<ScanStep> scan;  // a whole scan, instead of a kernel
  NodeId node = -1;                // in the lowered graph; of several the last
  std::vector<NodeId> with;        // the others
  Loc loc;
  int entry = -1;  // in Profile::instructions, while it is profiled
};

struct Program {
  std::vector<Instruction> code;
  std::vector<Array> literals;
  std::vector<Spec> inputs, outputs;
  std::size_t arena_bytes = 0;
  double flops = 0, recomputed_flops = 0;  // of a run; of them, those of values that were not stored
  std::vector<BufferInfo> buffers;
  std::shared_ptr<Graph> graph;  // the lowered graph, for printing and errors
};

// One run of a program: where its arena and its inputs and outputs (inputs first) are.
struct Frame {
  std::byte* arena = nullptr;
  std::byte* const* external = nullptr;
  Backend* backend = nullptr;    // null: the CPU
  Recorder* recorder = nullptr;  // null: nothing is profiled
  // What a scan tells the recorder: for which step and slice its body runs.
  int step = -1, slice = -1;
  bool recomputed = false;
};

// One scan. Body inputs: carries, xs, consts. Body outputs: next carries, then the stacked values but those
// of carries. It runs slice by slice (engine/slicing.h; one slice: all of it), each through all its steps.
// Worker-memory offsets are the same for every worker.
struct ScanStep {
  int steps = 0;
  bool reverse = false;
  // 0: all wanted values are stored; n: carries are kept at every n-th time, the rest is recomputed.
  int every = 0;
  int slices = 1;
  // Copies of the carries: one a segment when every > 0; two, used in turns, in a fused scan that reads lazy
  // stacks; else none.
  int copies = 0;

  struct Carry {
    Place init;
    Place final_value;  // none when nobody reads it
    SliceOf part;
    DType dtype = DType::f32;
    std::size_t ping = 0, pong = 0;  // the two working copies, in a worker's memory
    std::size_t checkpoints = 0;     // arena offset of [copies, slices] copies
    std::size_t terms = 0;           // arena offset of [slices] last values, when they are to be added up
    int stack = -1;  // >= 0: the stack of what the steps begin with; each writes the next there
  };
  struct PerStep {
    Place source;  // [steps, ...], in any layout
    Stepped where;
    int producer = -1;      // >= 0: the value is recomputed by the scan of this instruction when asked for
    std::size_t stack = 0;  // which of the producer's stacks
  };
  struct Const {
    Place source;
    SliceOf part;
  };
  struct Stack {
    Place stored;  // [steps, ...], in any layout; none when lazy
    Stepped where;
    SliceOf part;
    bool lazy = false;
    bool of_carry = false;  // filled by the steps before; no output of the body
    // Offset in a worker's memory. Lazy: of one segment, [every, ...]; stored: of the scratch of one step. A
    // lazy stack of a fused scan lies in the arena instead, [slices, every, ...].
    std::size_t buffer = 0;
  };
  std::vector<Carry> carries;
  std::vector<PerStep> xs;
  std::vector<Const> consts;
  std::vector<Stack> stacks;

  // What one thread needs to run slices: its own copy of the body's code, since kernels may keep scratch in
  // themselves, and its own memory. No other thread touches it while the scan runs.
  struct Worker {
    Program body;
    std::vector<std::byte*> externals, carry_in;
    int slice = -1, segment = -1;  // which the lazy buffers hold
  };
  std::vector<Worker> workers;
  std::size_t memory = 0, memory_bytes = 0;   // arena offset of the first worker's memory; of each
  std::size_t body_arena = 0;                 // in a worker's memory: the body's own arena
  std::unique_ptr<Backend::FusedScan> fused;  // its steps in one kernel, instead of one after the other
  int fused_segment = -1;                     // which segment the lazy stacks hold
};

// of_scan: the body of a scan of a graph that is being compiled.
Program compile(const std::deque<Node>& nodes, const std::vector<NodeId>& inputs,
                const std::vector<NodeId>& outputs, const PlanOptions& options, bool of_scan = false);
void execute(Program& program, const Frame& frame);
// Runs it twice on this thread. `external`: as of Frame, on the CPU.
Profile profile(Program& program, std::byte* const* external, std::int64_t most_events);

std::string ops_of(const Program& program, const Instruction& instruction);  // "mul+add"

}  // namespace nestgrad
