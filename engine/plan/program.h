// Program: what the executor runs. A flat list of instructions whose operands are places; scan bodies are
// programs inside an instruction.
#pragma once

#include <memory>

#include "engine/plan/arena.h"
#include "engine/plan/backend.h"
#include "engine/plan/cluster.h"
#include "engine/plan/plan_options.h"
#include "engine/plan/step_table.h"

namespace nestgrad {

struct Profile;  // engine/run/profile.h
class Recorder;  // engine/run/recorder.h
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

// One scan. It runs slice by slice (engine/plan/slicing.h; one slice: all of it), each through all its steps.
struct ScanStep {
  StepTable table;
  // 0: all wanted values are stored; n: carries are kept at every n-th time, the rest is recomputed.
  int every = 0;
  // Of the carries: for each stretch but the first one when every > 0; two, used by turns, in a scan run by a
  // kernel that reads values recomputed for it; else none.
  int copies = 0;
  std::vector<int> makers;  // instructions: scans whose values are recomputed when this one reads them

  // What one thread needs to run slices: its own copy of the body's code, since kernels may keep scratch in
  // themselves, and its own memory. No other thread touches it while the scan runs.
  struct Worker {
    Program body;
    std::vector<std::byte*> bases, externals, carry_in;
    int slice = -1, segment = -1;  // of which the values with a window are
  };
  std::vector<Worker> workers;
  std::size_t body_arena = 0;          // in a worker's memory: the body's own arena
  std::unique_ptr<LoopKernel> kernel;  // its steps as one kernel, instead of one after the other
  int kernel_segment = -1;             // of which the values with a window are

  // Of the workers: in the arena, from the first one on; and how much each has.
  std::size_t memory() const { return table.bases[0].place.at; }
  std::size_t memory_bytes() const { return table.bases[0].per_worker; }
};

// of_scan: the body of a scan of a graph that is being compiled.
Program compile(const std::deque<Node>& nodes, const std::vector<NodeId>& inputs,
                const std::vector<NodeId>& outputs, const PlanOptions& options, bool of_scan = false);
void execute(Program& program, const Frame& frame);
void run_scan(ScanStep& scan, Program& program, const Frame& frame);
std::byte* resolve(const Place& place, const Program& program, const Frame& frame);
// Runs it twice on this thread. `external`: as of Frame, on the CPU.
Profile profile(Program& program, std::byte* const* external, std::int64_t most_events);

std::string ops_of(const Program& program, const Instruction& instruction);  // "mul+add"

}  // namespace nestgrad
