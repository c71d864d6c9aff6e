// Profile: where a run of a plan spends its time and its memory, by instruction and by level of
// differentiation; as numbers, and as a Chrome trace.
//
//   const Profile p = f.plan().profile({x});
//   std::ofstream("trace.json") << chrome_trace(p);  // opens in ui.perfetto.dev and chrome://tracing
//
// The plan runs twice, the second time measured, on the calling thread alone and in an arena of its own (as
// large as the plan's). Slices take turns on the memory of the plan's workers. The outputs have the bits of
// Plan::run. A look at the clock after each instruction is in its time: tens of nanoseconds. Bodies of scans that
// are compiled as one function (PlanOptions::compile) have no instructions to look at: here they are interpreted.
//
// "Recomputed" is what scans read that were told to keep only some carries (PlanOptions::checkpoint_every,
// memory_budget): steps that run again. Not counted: values that PlanOptions::rematerialize or checkpoint()
// compute anew, and inner scans in the derivative of an outer one. They are instructions of what reads them;
// in the body of a scan they have a lower level than the scan.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/array.h"
#include "engine/core/tensor.h"

namespace nestgrad {

struct InstructionProfile {
  std::string ops;    // "matmul"; "mul+add": several ops run as one
  Spec out;           // of the last op, for one slice; a scan has none: i32[0]
  int level = 0;      // GraphNode::level; of several ops the highest
  std::string scope;  // of the last op, as is the line
  Loc loc;
  int depth = 0;          // 0: outermost; 1: in the body of a scan; ...
  int parent = -1;        // whose body: position of the scan in Profile::instructions
  std::int64_t runs = 0;  // in a body: for each step and slice, and again where it is recomputed
  std::int64_t recomputed_runs = 0;
  double seconds = 0;  // own time of all runs: of a scan, what its body's instructions do not take
  double recomputed_seconds = 0;
};

// What lives in the arena while an outermost instruction runs.
struct MemoryPoint {
  int instruction = 0;  // position in Profile::instructions
  double begin_s = 0;   // since the run began
  // Bytes of live buffers, by the level of what wrote them. A scan's working memory, checkpoints included,
  // has the scan's level; what it hands out has the level of its body's instruction.
  std::vector<std::size_t> bytes_by_level;
};

struct TraceEvent {
  int instruction = 0;                // position in Profile::instructions
  std::int64_t begin_ns = 0, ns = 0;  // since the run began; how long, with what ran inside
  int step = -1, slice = -1;          // of the scan whose body it is in; -1: outermost
  bool recomputed = false;
};

struct Profile {
  double seconds = 0;  // the whole run; no less than the sum over the instructions
  double recompute_share = 0;
  int levels = 0;                                // 1 + the highest
  std::vector<InstructionProfile> instructions;  // in the order of Plan::str(): a scan, then its body
  std::vector<MemoryPoint> memory;               // one for each outermost instruction

  std::size_t predicted_peak = 0;  // PlanStats::arena_bytes
  // One past the highest byte that the runs wrote, found by painting the arena and some bytes behind it
  // before each.
  std::size_t measured_peak = 0;
  // Scratch that the plan gives a scan and the run need not write, where it is the last of the arena.
  std::size_t spare_on_top = 0;
  // Is the measured peak the predicted one, but for padding (under kArenaAlignment) and spare_on_top? A loop
  // over empty values has memory that it never writes: there the measured peak may be lower.
  bool peaks_agree() const;
  // The most that MemoryPoints have: less than predicted_peak by padding and by gaps between live buffers.
  std::size_t most_live_bytes() const;

  std::vector<TraceEvent> events;    // by begin; if not all were kept, the first ones of each instruction
  std::int64_t events_left_out = 0;  // for Plan::profile's `most_events`
  std::vector<Array> outputs;
};

// "level 1: inner gradient", of a profile with so many levels.
std::string level_name(int level, int levels);

// JSON in the Chrome trace event format: a track for each level, and live bytes by level as a counter.
std::string chrome_trace(const Profile& profile, std::string_view name = "nestgrad");

}  // namespace nestgrad
