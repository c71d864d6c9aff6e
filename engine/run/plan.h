// Plan: a function compiled for a device: a flat list of instructions over one memory arena, replayed without
// allocating. Decided here, without changing a bit of the result: what is dead, where a value lives, and
// whether the values that a derivative reads from a scan are stored or recomputed. Simplification
// (Op::simplify) and slicing (engine/plan/slicing.h) give equal values, but may add in another order, and may
// give a zero the other sign.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/core/graph.h"
#include "engine/plan/plan_options.h"

namespace nestgrad {

struct Profile;  // engine/run/profile.h

class Plan {
 public:
  // `inputs` are cut points: any nodes; nodes before them are not run.
  Plan(const std::deque<GraphNode>& nodes, std::vector<NodeId> inputs, std::vector<NodeId> outputs,
       const PlanOptions&);
  ~Plan();
  Plan(Plan&&) noexcept;
  Plan& operator=(Plan&&) noexcept;

  const Device& device() const;
  const std::vector<Spec>& input_specs() const;
  const std::vector<Spec>& output_specs() const;

  // Fresh output arrays: on the CPU if all inputs lie there, else on the plan's device. An output that is
  // written over an input (PlanOptions::donate) is that input's array.
  std::vector<Array> run(const std::vector<Array>& inputs);
  // Into the arrays given, there or on the CPU: defined, of the right specs, each the array of no other output
  // and of no input but the one that was donated for it; ShapeError, ConfigError. Allocates nothing; on a
  // GPU for addresses alone that it has not seen lately.
  void run(std::span<const Array> inputs, std::span<Array> outputs);

  // What a run does with its time and memory; engine/run/profile.h says more. Overwrites no input. DeviceError
  // if it is not the CPU's.
  Profile profile(const std::vector<Array>& inputs, std::int64_t most_events = 20'000);

  PlanStats stats() const;
  std::string str() const;  // what a run costs, then one line an instruction
  // A plan on the CPU as C++: what PlanOptions::compile has compiled, one function for the body of each scan and for
  // each other instruction of several ops. It needs the headers of ops/numerics and ops/kernels before it. A plan on a GPU as CUDA
  // C++: the kernels that were compiled for its scans.
  std::string source() const;
  // Their texts alone, each once, the function's name being "$" (engine/plan/loops_ahead.h).
  std::vector<std::string> loops() const;
  std::vector<BufferInfo> buffers() const;  // of the outermost program

 private:
  struct Impl;
  Impl& impl() const;  // GraphError of a plan that was moved from
  std::unique_ptr<Impl> impl_;
};

}  // namespace nestgrad
