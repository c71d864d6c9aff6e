#include "autograd/scan.h"

#include <fmt/format.h>

#include <limits>

#include "autograd/fold_scales.h"
#include "autograd/missed_paths.h"
#include "engine/core/node_text.h"
#include "ops/rules.h"
#include "ops/table.h"

namespace nestgrad {

namespace {

Spec infer_scan(const OpCall& c) {
  const ScanAttrs& scan = c.attrs.as<ScanAttrs>();
  const GraphBody& body = *scan.body;
  if (static_cast<int>(c.in.size()) != body.inputs())
    c.shape_error(fmt::format("the body has {} inputs", body.inputs()));
  for (int i = 0; i < body.inputs(); ++i) {
    Spec wanted = body.spec(i);
    if ((i >= body.carries && i < body.carries + body.xs) || (i < body.carries && scan.recomputes))
      wanted.shape.insert(wanted.shape.begin(), scan.steps);
    if (c.in[static_cast<std::size_t>(i)] != wanted)
      c.shape_error(fmt::format("input {} must be {}", i, to_string(wanted)));
  }
  return {DType::i32, {0}};  // no value of its own
}

Spec infer_final(const OpCall& c) {
  const FinalAttrs& final = c.attrs.as<FinalAttrs>();
  if (final.carry < 0 || final.carry >= final.body->carries)
    c.shape_error(fmt::format("there is no carry {}, there are {}", final.carry, final.body->carries));
  return final.body->spec(final.carry);
}

Spec infer_stack(const OpCall& c) {
  const StackAttrs& stack = c.attrs.as<StackAttrs>();
  if (stack.node < 0 || stack.node >= std::ssize(stack.body->nodes))
    c.shape_error(fmt::format("the body of the scan has no node {}", stack.node));
  Spec out = stack.body->spec(stack.node);
  out.shape.insert(out.shape.begin(), stack.steps);
  return out;
}

}  // namespace

constinit const Op scan_op = {
    .name = "scan",
    .doc = "A loop over time: carries_t+1 = body(carries_t, xs_t, consts). Read through final and stack.",
    .kind = OpKind::scan,
    .infer = infer_scan,
    .why_no_derivative = "its derivative is another scan, built by autograd/scan_vjp.cpp",
    .describe = [](const Attrs& a) {
      const ScanAttrs& scan = a.as<ScanAttrs>();
      return fmt::format("steps={}{}{}{}", scan.steps, scan.reverse ? ", reverse" : "",
                         scan.every ? fmt::format(", every={}", scan.every) : "",
                         scan.recomputes ? ", recomputes" : "");
    }};

constinit const Op final_op = {
    .name = "final",
    .doc = "The value of one carry of a scan after its last step.",
    .kind = OpKind::final,
    .infer = infer_final,
    .why_no_derivative = "see scan",
    // Of a carry that each step hands on as it is: what it began with. Such a carry is read where that lies, in all steps.
    .simplify =
        [](Tensor t) {
          const FinalAttrs& final = node_of(t).attrs.as<FinalAttrs>();
          const bool stays = final.body->outs[static_cast<std::size_t>(final.carry)] == final.carry;
          const Tensor scan = input_of(t);
          return stays && !node_of(scan).attrs.as<ScanAttrs>().recomputes
                     ? input_of(scan, static_cast<std::size_t>(final.carry))
                     : Tensor();
        },
    .describe = [](const Attrs& a) { return fmt::format("carry {}", a.as<FinalAttrs>().carry); }};

constinit const Op stack_op = {
    .name = "stack",
    .doc = "The value of one node of a scan's body at every step, [time, ...].",
    .kind = OpKind::stack,
    .infer = infer_stack,
    .why_no_derivative = "see scan",
    .describe = [](const Attrs& a) { return fmt::format("node {}", a.as<StackAttrs>().node); }};

namespace {

std::int64_t common_steps(const Tensors& xs, const ScanOptions& options, Loc loc) {
  std::int64_t steps = options.steps;
  for (const Tensor& x : xs) {
    if (x.rank() == 0)
      throw ShapeError(fmt::format("[scan] {} has no time axis (at {})", describe(x), describe(loc)));
    if (steps >= 0 && x.dim(0) != steps)
      throw ShapeError(fmt::format("[scan] {} has {} steps, others {} (at {})", describe(x), x.dim(0), steps,
                                   describe(loc)));
    steps = x.dim(0);
  }
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  if (steps > kMost)
    throw ShapeError(
        fmt::format("[scan] {} steps; it can have {} at most (at {})", steps, kMost, describe(loc)));
  if (steps < 1)
    throw ShapeError(
        xs.empty()
            ? fmt::format("[scan] needs at least one step, got {}; give xs, or ScanOptions::steps (at {})",
                          steps, describe(loc))
            : fmt::format(
                  "[scan] needs at least one step; the first axis of xs, its steps, is {}: {} (at {})", steps,
                  describe(xs[0]), describe(loc)));
  return steps;
}

}  // namespace

Tensor scan_node(std::shared_ptr<const GraphBody> body, const Tensors& inputs, std::int64_t steps,
                 bool reverse, int every, Loc loc) {
  return emit(scan_op, inputs, ScanAttrs{std::move(body), steps, reverse, every, false}, loc);
}

Tensor scan_final(Tensor scan, std::int64_t carry) {
  const GraphNode& n = scan.graph().node(scan.id());
  return emit(final_op, {scan}, FinalAttrs{n.attrs.as<ScanAttrs>().body, static_cast<int>(carry)}, n.loc);
}

Tensor scan_stack(Tensor scan, std::int64_t body_node) {
  const GraphNode& n = scan.graph().node(scan.id());
  const ScanAttrs& a = n.attrs.as<ScanAttrs>();
  return emit(stack_op, {scan}, StackAttrs{a.body, static_cast<NodeId>(body_node), a.steps}, n.loc);
}

ScanResult scan(const StepFn& step, const Tensors& init, const Tensors& xs, ScanOptions options, Loc loc) {
  require_function("scan", "the step", step, loc);
  check_defined("scan", "carry", init, loc);
  check_defined("scan", "x", xs, loc);
  const std::int64_t steps = common_steps(xs, options, loc);
  if (options.checkpoint_every < 0)
    throw ConfigError(
        fmt::format("[scan] checkpoint_every is {}; it must be 0 (store all) or positive (at {})",
                    options.checkpoint_every, describe(loc)));
  Graph* parent = context().emit.graph;
  for (const Tensor& t : init)
    if (!parent) parent = &t.graph();
  for (const Tensor& t : xs)
    if (!parent) parent = &t.graph();
  if (!parent)
    throw GraphError(fmt::format(
        "[scan] no graph is open: call this inside trace(), or under a GraphScope (at {})", describe(loc)));

  check_nesting("scan", *parent, loc);
  Graph graph(GraphOptions{.parent = parent});
  Tensors carries, slices;
  StepOutput next;
  {
    const GraphScope scope(graph);
    for (std::size_t i = 0; i < init.size(); ++i)
      carries.push_back(graph.input(init[i].spec(), fmt::format("carry{}", i), loc));
    for (std::size_t i = 0; i < xs.size(); ++i) {
      Spec spec = xs[i].spec();
      spec.shape.erase(spec.shape.begin());
      slices.push_back(graph.input(spec, fmt::format("x{}", i), loc));
    }
    for (std::size_t i = 0; i < init.size(); ++i) graph.note_source(init[i], carries[i]);
    for (std::size_t i = 0; i < xs.size(); ++i) graph.note_source(xs[i], slices[i]);
    next = step(carries, slices);
    check_defined("scan", "the step's carry", next.carries, loc);
    check_defined("scan", "the step's y", next.ys, loc);
    fold_scales(graph, next.carries, next.ys);
  }
  if (next.carries.size() != init.size())
    throw ShapeError(fmt::format("[scan] the step returned {} carries, it was given {} (at {})",
                                 next.carries.size(), init.size(), describe(loc)));

  Closing closing;
  for (const Tensor& t : carries) closing.carries.push_back(t.id());
  for (const Tensor& t : slices) closing.xs.push_back(t.id());
  for (std::size_t i = 0; i < init.size(); ++i) {
    if (next.carries[i].spec() != init[i].spec())
      throw ShapeError(fmt::format(
          "[scan] carry {} is {} before the step and {} after it; both must have one type and shape (at {})",
          i, describe(init[i]), describe(next.carries[i]), describe(loc)));
    closing.outs.push_back(graph.lift(next.carries[i]));
  }
  check_ways_through_steps(graph, closing.carries, closing.outs, loc);
  for (const Tensor& y : next.ys) closing.keep.push_back(graph.lift(y));
  for (const Capture& c : graph.captures()) closing.consts.push_back(c.id);
  const Closed closed = close_body(graph, closing);

  Tensors inputs = init;
  for (std::size_t i : closed.live_xs) inputs.push_back(xs[i]);
  for (std::size_t i : closed.live_consts) inputs.push_back(graph.captures()[i].outer);
  const Tensor node = scan_node(closed.body, inputs, steps, options.reverse, options.checkpoint_every, loc);
  ScanResult result;
  for (std::size_t i = 0; i < init.size(); ++i)
    result.carries.push_back(scan_final(node, static_cast<std::int64_t>(i)));
  for (NodeId y : closed.keep) result.ys.push_back(scan_stack(node, y));
  return result;
}

}  // namespace nestgrad
