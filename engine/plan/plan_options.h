// PlanOptions: what may be chosen when a function is compiled, and what is told of the plan
// (engine/run/plan.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/core/device.h"

namespace nestgrad {

// When the loops of a plan, bodies of scans among them, are compiled to machine code (engine/plan/native.h).
enum class Compile : std::uint8_t { never, background, now };
// What NESTGRAD_COMPILE says, else what was set, else never. ConfigError if the variable says something else.
Compile default_compile();
// For plans whose options do not say `compile`, from any thread; of programs on a GPU (programs/program.h) it is now.
void set_default_compile(Compile compile);

// Output number `output` is written over input number `input`.
struct Donation {
  std::size_t output = 0, input = 0;
};

struct PlanOptions {
  bool simplify = true;
  bool reuse = true;  // let an op write over an input that dies there
  // Run elementwise ops, and sums of rows between them, as one instruction. Changes no bit; on a GPU sums of rows are added
  // in another order.
  bool fuse = true;
  // Compute cheap values again where derivatives read them; needs less memory.
  bool rematerialize = true;
  // Bytes from which on a value outside of scans is worth it: smaller ones may stay in a cache.
  std::size_t recompute_above = std::size_t{4} << 20;
  bool slice = true;  // run independent slices of a scan one after the other, or in parallel
  // Checkpointing through time, over what each scan asked for: 0 stores every step, n > 0 keeps every n-th
  // carry and recomputes the segment between. Any choice gives the same bits.
  std::optional<int> checkpoint_every = {};
  // Bytes that the arena may have; 0: any number. If what was asked for needs more, the schedule that computes least is
  // taken of those that fit: every n-th step of scans kept, n = 0, 1, 2, 4, .., and outside of them values of
  // recompute_above or of any size computed again. ConfigError if none needs so little.
  std::size_t memory_budget = 0;
  Device device = default_device();           // where it runs
  Precision precision = default_precision();  // of its products, on a GPU
  Compile compile = default_compile();  // of its loops, or on a GPU of the kernels of scans; changes no bit
  // Threads that take slices of scans; 0: thread_count(). Products and sums are shared among thread_count() whatever this is. Any
  // number gives the same bits.
  int workers = 0;
  // Inputs whose memory is given up for an output of the same spec, as by JAX's donate_argnums: a training step
  // then has its parameters in memory once. Changes no bit. A run ends with the output in the input's array:
  // every Array that shares it is overwritten, and if the run throws, what it holds is not defined. Where the
  // input is read after the output is made, the plan keeps the output elsewhere until then.
  std::vector<Donation> donate = {};
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
  double recompute_factor = 1;  // flops over those of a run that computes no value again
  std::size_t recordings =
      0;  // of runs on a GPU that were made; many: its inputs and outputs lie elsewhere each time
};

}  // namespace nestgrad
