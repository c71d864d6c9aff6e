// Plan: a function compiled for a device: a flat list of instructions over one memory arena, replayed without
// allocating. Decided here, without changing a bit of the result: what is dead, where a value lives, and
// whether the values that a derivative reads from a scan are stored or recomputed. Simplification
// (Op::simplify) and slicing (engine/slicing.h) give equal values, but may add in another order, and may
// leave a zero its sign.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/graph.h"

namespace nestgrad {

struct Profile;  // engine/profile.h

struct PlanOptions {
  bool simplify = true;
  bool reuse = true;  // let an op write over an input that dies there
  bool fuse = true;  // run elementwise ops, and sums of rows between them, as one instruction; changes no bit
  // Compute cheap values of a scan again where its derivatives read them; needs less memory.
  bool rematerialize = true;
  bool slice = true;  // run independent slices of a scan one after the other, or in parallel
  // Checkpointing through time, over what each scan asked for: 0 stores every step, n > 0 keeps every n-th
  // carry and recomputes the segment between. Any choice gives the same bits.
  std::optional<int> checkpoint_every;
  // Bytes that the arena may have; 0: any number. If storing everything needs more, the checkpoint schedule
  // is chosen, over checkpoint_every; ConfigError if none needs so little.
  std::size_t memory_budget = 0;
  Device device = default_device();           // where it runs
  Precision precision = default_precision();  // of its products, on a GPU
  int workers = 0;  // threads that may be used at once; 0: thread_count(). Any number gives the same bits
};

// Where a value lives, for tests and pictures. Steps are instruction numbers.
struct BufferInfo {
  std::size_t offset, bytes;
  int first, last;  // live from the instruction that writes it to the last that reads it, inclusive
};

struct PlanStats {
  std::size_t arena_bytes = 0;
  std::size_t instructions = 0;  // scan bodies included
  std::size_t nodes = 0;
  double flops = 0;             // of a run
  double recompute_factor = 1;  // flops over those of a run that recomputes nothing
};

class Plan {
 public:
  // `inputs` are cut points: any nodes; nodes before them are not run.
  Plan(const std::deque<Node>& nodes, std::vector<NodeId> inputs, std::vector<NodeId> outputs,
       const PlanOptions&);
  ~Plan();
  Plan(Plan&&) noexcept;
  Plan& operator=(Plan&&) noexcept;

  const Device& device() const;
  const std::vector<Spec>& input_specs() const;
  const std::vector<Spec>& output_specs() const;

  // Fresh output arrays: on the CPU if all inputs lie there, else on the plan's device.
  std::vector<Array> run(const std::vector<Array>& inputs);
  // Into the arrays given (defined, right specs, no overlap with inputs), there or on the CPU. Allocates
  // nothing, but at the first run on a GPU.
  void run(std::span<const Array> inputs, std::span<Array> outputs);

  // What a run does with its time and memory; engine/profile.h says more. DeviceError if it is not the CPU's.
  Profile profile(const std::vector<Array>& inputs, std::int64_t most_events = 20'000);

  PlanStats stats() const;
  std::string str() const;                  // what a run costs, then one line an instruction
  std::vector<BufferInfo> buffers() const;  // of the outermost program

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nestgrad
