// Program: what the executor runs. A flat list of instructions, whose operands are Places (an offset in the
// arena, an argument, a literal); scan bodies are programs inside an instruction. Owned by its plan, and run
// by one thread at a time: kernels may keep scratch.
#pragma once

#include <functional>
#include <memory>

#include "engine/plan/backend.h"
#include "engine/plan/cluster.h"
#include "engine/plan/plan_options.h"
#include "engine/plan/step_table.h"

namespace nestgrad {

struct Profile;  // engine/run/profile.h
class Recorder;  // engine/run/recorder.h
struct ScanStep;
struct NativeCode;  // engine/plan/native.h

struct Instruction {
  const Op* op = nullptr;  // null: copy in[0] to out
  OpKernel kernel;
  ClusterKernel cluster;                    // several ops, with several outputs, instead of a kernel
  std::shared_ptr<const ClusterCall> call;  // what the cluster computes
  std::vector<Place> in;
  Place out;
  std::vector<Place> outs;         // of a cluster
  std::size_t bytes = 0;           // of a copy
  std::unique_ptr<ScanStep> scan;  // a whole scan, instead of a kernel
  NodeId node = -1;                // in Program::graph; of a cluster the last
  std::vector<NodeId> with;  // the others of the cluster; of a sum that a term's kernel adds to, that term
  Loc loc;
  std::string source;  // of a backend's kernel that was compiled for its shapes
  int entry = -1;      // in Profile::instructions, while it is profiled
};

struct Program {
  std::vector<Instruction> code;
  std::vector<Array> literals;
  std::vector<Spec> inputs, outputs;
  std::size_t arena_bytes = 0;
  double flops = 0, recomputed_flops = 0;  // of a run; of these, what is spent on values that were not stored
  std::vector<BufferInfo> buffers;
  std::shared_ptr<Graph> graph;  // the lowered graph, for printing and errors
  std::shared_ptr<const NativeCode>
      native;  // all of it as one function (engine/plan/body_source.h); null: none
  std::vector<const std::byte*> literal_data;  // for that function
};

// The memory of one run. Owns nothing.
struct Frame {
  std::byte* arena = nullptr;
  std::byte* const* external = nullptr;  // inputs, then outputs
  Backend* backend = nullptr;            // null: the CPU
  Recorder* recorder = nullptr;          // null: nothing is profiled
  // What a scan tells the recorder: for which step and slice its body runs.
  int step = -1, slice = -1;
  bool recomputed = false;
};

// One scan. It runs slice by slice (engine/plan/slicing.h; one slice: all of it), each through all its steps.
struct ScanStep {
  StepTable table;
  // 0: all wanted values are stored; n: carries are kept at every n-th time, the rest is recomputed.
  int every = 0;
  // It only makes again what others read (engine/plan/recompute_carries.cpp): no steps are run before that. The carries
  // that it begins segments with are those that another scan keeps.
  bool on_demand = false;
  // Kept carries: every > 0, one for each segment but the first; two, used by turns, where a backend's kernel
  // reads recomputed values; else none.
  int copies = 0;
  std::vector<int> makers;  // in the enclosing code: scans whose values are recomputed for this one

  // What one thread needs to run slices: its own copy of the body's code, since kernels may keep scratch in
  // themselves, and its own memory. No other thread touches it while the scan runs.
  struct Worker {
    Program body;
    std::vector<std::byte*> bases, externals, carry_in;
    int slice = -1, segment = -1;  // whose recomputed values are in memory; -1: none
  };
  std::vector<Worker> workers;
  std::size_t body_arena = 0;          // in a worker's memory: the body's own arena
  std::unique_ptr<LoopKernel> kernel;  // its steps as one kernel, instead of one after the other
  int kernel_segment = -1;             // as Worker::segment
  std::string why_op_by_op;  // why a backend has no kernel for it, though its slices are independent

  // The workers' memory: where that of the first is in the arena, and the bytes of each.
  std::size_t memory() const { return table.bases[0].place.at; }
  std::size_t memory_bytes() const { return table.bases[0].per_worker; }
};

// of_scan: the nodes are the body of a scan.
Program compile(const std::deque<GraphNode>& nodes, const std::vector<NodeId>& inputs,
                const std::vector<NodeId>& outputs, const PlanOptions& options, bool of_scan = false);
void execute(Program& program, const Frame& frame);
void run_scan(ScanStep& scan, Program& program, const Frame& frame);
std::byte* resolve(const Place& place, const Program& program, const Frame& frame);
// Runs it twice on this thread. `external`: as of Frame, on the CPU. place_inputs: called before each run, which
// may write over inputs.
Profile profile(
    Program& program, std::byte* const* external, std::int64_t most_events,
    const std::function<void()>& place_inputs = [] {});

std::string ops_of(const Program& program, const Instruction& instruction);  // "mul+add"

}  // namespace nestgrad
