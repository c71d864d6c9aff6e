// StepTable: where each step of a scan finds what it reads and leaves what it writes. Worked out once, with
// the plan (engine/plan/compile_scan.cpp). The CPU's loop (engine/run/run_scan.cpp), CUDA's kernel
// (cuda/scan.cu) and the profiler follow it; what a backend needs to make a whole loop one kernel is this
// table and the body.
//
// A step's values, in the order of its body's operands: carries, xs, constants; next carries, stacks but
// those of carries. A value lies at an offset from a base: a place of the program's or, as base 0, the memory
// of the worker (on a GPU, the block of threads) that takes a slice through its steps.
#pragma once

#include <string>
#include <vector>

#include "engine/core/graph.h"
#include "engine/plan/place.h"
#include "engine/plan/step_addresses.h"

namespace nestgrad {

struct StepTable {
  int steps = 0;
  int slices = 1;
  bool reverse = false;
  std::vector<StepCarry> carries;
  std::vector<StepValue> xs, constants, stacks;
  std::vector<std::int64_t> offsets;  // by part and slice
  std::vector<char> owners;           // likewise: is this slice the first of those that have this very part?

  // Begins at `place`; of worker n, n * per_worker bytes later.
  struct Base {
    Place place;
    std::size_t per_worker = 0;
  };
  std::vector<Base> bases{1};

  int base(const Place& place, std::size_t per_worker = 0);  // its number
  StepPart part(std::size_t bytes, const std::vector<std::size_t>& at, const std::vector<char>& owner);
  StepTableView view() const;
};

// All the steps of a scan, or those of a stretch, as one kernel of a backend. It takes every slice.
class LoopKernel {
 public:
  virtual ~LoopKernel() = default;
  // Queues them; bases: where those of the table lie.
  virtual void run(std::byte* const* bases, const Stretch& steps) = 0;
  virtual std::string describe() const = 0;
  virtual std::string source() const { return {}; }  // its text, where it was compiled for this scan
};

}  // namespace nestgrad
