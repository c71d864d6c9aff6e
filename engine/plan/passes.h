// Passes: what becomes of a traced graph on its way to a Program. The table says all that there is to say of
// each; docs/performance.md shows it. To add a pass that makes of a graph another one, add its function and
// its row.
#pragma once

#include <functional>

#include "engine/core/rewrite.h"
#include "engine/plan/plan_options.h"

namespace nestgrad {

struct Pass {
  std::string_view name;
  std::string_view sentence;  // what it does
  std::string_view where;     // the files that do it
  std::string_view option;    // the member of PlanOptions that turns it off; empty: nothing does
  bool keeps_bits = true;     // false: equal values, but numbers may be added in another order
  bool recomputes = false;    // the flops that the graph gains by it are spent on computing values again
  // Is it run on this graph? of_scan: on the body of a scan, when that is compiled in its turn.
  bool (*is_on)(const PlanOptions& options, bool of_scan) = nullptr;
  // Null: no pass over a graph, but a decision of the compiler (engine/plan/compiler.h).
  Lowered (*run)(const Lowered& from, const PlanOptions& options) = nullptr;
};

// In the order in which they happen. The first one makes the graph that the others are given.
std::span<const Pass> passes();

struct Passed {
  Lowered lowered;
  double recomputed_flops = 0;  // of a run, those that the passes which recompute have added
};

// A plan's graph is lowered once, with the bodies of its scans: what changes roundings is decided before
// anything moves between bodies. Each body is then lowered again when it is compiled (of_scan), perhaps for
// one slice: expressions of the same bits, and stacked products. after: told of the graph that each pass
// made.
Passed run_passes(const std::deque<GraphNode>& nodes, const std::vector<NodeId>& inputs,
                  const std::vector<NodeId>& outputs, const PlanOptions& options, bool of_scan,
                  const std::function<void(const Pass&, const Lowered&)>& after = {});

// ---- passes over graphs ----

// Without dead nodes, and of ops that have a kernel. GraphError where an op has neither kernel nor expansion.
Lowered simplify_graph(const std::deque<GraphNode>& nodes, const std::vector<NodeId>& inputs,
                       const std::vector<NodeId>& outputs, const PlanOptions& options, bool of_scan);
Lowered simplify_bodies(const Lowered& from, const PlanOptions& options);
Lowered recompute_regions(const Lowered& from);
// What a scan keeps for the scans that read its values, its derivatives above all: a value that cheap ops
// give from others is computed again where it is read, since its way through the memory costs more. Decided
// by a minimum cut.
Lowered rematerialize(const Lowered& from);
// The same outside of scans, of values of at least PlanOptions::recompute_above bytes: one that a derivative reads
// is computed again before its first such reader.
Lowered recompute_values(const Lowered& from, const PlanOptions& options);
// Carries that scans read step by step and that are cheap to make again from those of every n-th step, and
// from what is kept anyway: made again by scans of their own (ScanAttrs::recomputes).
Lowered recompute_carries(const Lowered& from, const PlanOptions& options);

}  // namespace nestgrad
