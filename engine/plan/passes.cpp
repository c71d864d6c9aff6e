#include "engine/plan/passes.h"

#include "engine/plan/backend.h"
#include "engine/plan/liveness.h"
#include "engine/plan/price.h"
#include "engine/plan/slicing.h"

namespace nestgrad {

namespace {

// Of what is live of a graph, or of a step of a body.
double flops_of(const std::deque<GraphNode>& nodes, const Live& live) {
  double out = 0;
  for (std::size_t id = 0; id < nodes.size(); ++id) {
    const GraphNode& n = nodes[id];
    if (!live.nodes[id]) continue;
    if (const ScanAttrs* scan = n.attrs.find<ScanAttrs>())
      out += static_cast<double>(scan->steps) *
             flops_of(scan->body->nodes, *live.scans.at(static_cast<NodeId>(id)).body);
    else out += flops_of(nodes, n);
  }
  return out;
}

double flops_of(const Lowered& of) {
  return flops_of(of.graph->nodes(), liveness(of.graph->nodes(), of.outputs));
}

// A scan that reads other values may be cut in slices otherwise, and its sums be added up in another order:
// then nothing is moved.
Lowered rematerialize_keeping_bits(const Lowered& from, const PlanOptions& options) {
  Lowered moved = rematerialize(from);
  return options.slice && moved.graph != from.graph && !sums_alike(moved, from) ? from : moved;
}

constexpr auto kAlways = [](const PlanOptions&, bool) { return true; };

constexpr Pass kPasses[] = {
    {.name = "simplify",
     .sentence =
         "dead nodes go, ops without a kernel become ops that have one; numbers are folded, transposes "
         "absorbed into products, factors taken out of sums, `A X + B X` becomes one product, a "
         "number times a row elementwise",
     .where = "engine/plan/simplify_graph.cpp, ops/simplify.cpp",
     .option = "simplify",
     .keeps_bits = false,
     .is_on = kAlways},
    {.name = "simplify bodies",
     .sentence = "the same in the bodies of scans, before anything moves between them",
     .where = "engine/plan/simplify_graph.cpp",
     .option = "simplify",
     .keeps_bits = false,
     .is_on = [](const PlanOptions&, bool of_scan) { return !of_scan; },  // unsimplified ops are expanded too
     .run = simplify_bodies},
    {.name = "recompute regions",
     .sentence = "what `checkpoint` marks is computed again where a derivative reads it",
     .where = "engine/plan/recompute_regions.cpp",
     .recomputes = true,
     .is_on = kAlways,
     .run = [](const Lowered& from, const PlanOptions&) { return recompute_regions(from); }},
    {.name = "rematerialize",
     .sentence =
         "of what a derivative reads of a scan, a minimum cut decides what is kept and what cheap ops "
         "compute again",
     .where = "engine/plan/rematerialize.cpp, engine/plan/cut.cpp, engine/plan/price.cpp",
     .option = "rematerialize",
     .recomputes = true,
     .is_on = [](const PlanOptions& o, bool) { return o.rematerialize; },
     .run = rematerialize_keeping_bits},
    {.name = "recompute carries",
     .sentence =
         "of carries that derivatives read and that cheap products make again, those of every n-th step are "
         "kept and the others made again, n steps at a time, before they are read",
     .where = "engine/plan/recompute_carries.cpp",
     .option = "rematerialize",
     .is_on =
         [](const PlanOptions& o, bool) {
           return o.rematerialize && !o.device.backend() && o.checkpoint_every.value_or(0) == 0;
         },
     .run = recompute_carries},
    {.name = "recompute values",
     .sentence = "outside of scans, a minimum cut decides which large values cheap ops compute again where a "
                 "derivative reads them",
     .where = "engine/plan/recompute_values.cpp, engine/plan/cut.cpp, engine/plan/price.cpp",
     .option = "rematerialize",
     .recomputes = true,
     .is_on = [](const PlanOptions& o, bool of_scan) { return o.rematerialize && !of_scan; },
     .run = recompute_values},
    {.name = "suit the backend",
     .sentence =
         "for a GPU: a scan of one step is part of the graph around it, what a scan of elementwise steps makes for "
         "others alone is made after it, permutes of batch axes move behind the ops that do not care, and sums over "
         "whole matrices begin with their rows",
     .where = "cuda/single_steps.cpp, cuda/after_steps.cpp, cuda/permute_late.cpp, cuda/row_sums.cpp",
     .keeps_bits = false,
     .is_on = [](const PlanOptions& o, bool) { return o.device.backend() != nullptr; },
     .run = [](const Lowered& from,
               const PlanOptions& options) { return options.device.backend()->suited(from, options); }},
    {.name = "slice",
     .sentence =
         "a scan over independent sequences and heads runs slice by slice, each on one thread, its state "
         "in the cache",
     .where = "engine/plan/slicing.cpp",
     .option = "slice",
     .keeps_bits = false},
    {.name = "lay out steps",
     .sentence =
         "permuted sequences are read and written where they lie; what only slices read lies slice by "
         "slice; carries are written into the stacks that keep them",
     .where = "engine/plan/stepped.cpp, engine/plan/step_table.h"},
    {.name = "fuse",
     .sentence =
         "elementwise ops, and sums and maxima of rows between them, are one instruction with as many "
         "outputs as others read, block of rows by block of rows, and branches of which something reads both "
         "join; a product adds what is added to it; in the "
         "body of a scan, products that go over one matrix are done one after the other",
     .where = "engine/plan/fusion.cpp, engine/plan/cluster.cpp, engine/plan/gather_products.cpp",
     .option = "fuse"},
    {.name = "place",
     .sentence = "buffers share one arena; an op writes over an input that dies",
     .where = "engine/plan/compile.cpp, engine/plan/arena.cpp",
     .option = "reuse"}};

}  // namespace

std::span<const Pass> passes() { return kPasses; }

Passed run_passes(const std::deque<GraphNode>& nodes, const std::vector<NodeId>& inputs,
                  const std::vector<NodeId>& outputs, const PlanOptions& options, bool of_scan,
                  const std::function<void(const Pass&, const Lowered&)>& after) {
  Passed out{simplify_graph(nodes, inputs, outputs, options, of_scan)};
  if (after) after(kPasses[0], out.lowered);
  for (const Pass& pass : kPasses) {
    if (!pass.run || !pass.is_on(options, of_scan)) continue;
    Lowered made = pass.run(out.lowered, options);
    if (pass.recomputes && made.graph != out.lowered.graph)
      out.recomputed_flops += flops_of(made) - flops_of(out.lowered);
    out.lowered = std::move(made);
    if (after) after(pass, out.lowered);
  }
  return out;
}

}  // namespace nestgrad
