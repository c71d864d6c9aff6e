// From a lowered graph to a Program: where each value lives and when it dies.

#include <algorithm>
#include <limits>

#include "engine/core/node_call.h"
#include "engine/plan/cluster.h"
#include "engine/plan/compiler.h"
#include "engine/plan/passes.h"
#include "engine/plan/price.h"
#include "engine/plan/readers.h"

namespace nestgrad {

Compiler::Compiler(Lowered lowered, const PlanOptions& options, bool of_scan, OpByOp& op_by_op)
    : source_(std::move(lowered)),
      graph_(*source_.graph),
      options_(options),
      of_scan_(of_scan),
      op_by_op_(op_by_op),
      values_(uz(graph_.size())) {}

std::optional<Program> Compiler::run() {
  program_.graph = source_.graph;
  live_ = live_nodes(graph_.nodes(), source_.outputs, source_.inputs);
  readers_ = readers_of(graph_, live_, source_.outputs);
  slice_scans();
  layouts_ =
      lay_out_steps(graph_, live_, readers_, [&](NodeId scan, NodeId what) { return part_in(scan, what); });
  fusion_ = options_.fuse ? fuse(graph_, live_, readers_, backend() == nullptr) : unfused(graph_, live_);
  if (options_.fuse && of_scan_) gather_products(graph_, fusion_);
  find_last_readers();
  place_inputs();
  place_outputs();
  for (; group_ < fusion_.order.size(); ++group_) issue(fusion_.order[group_]);
  copy_outputs();
  extend_lazy_lifetimes();
  finish();
  if (!fuse_scans()) return {};
  return std::move(program_);
}

// ---- homes ----

NodeId Compiler::root_of(NodeId id) const {
  while (node(id).op->is_alias || layouts_.read_in_place.contains(id)) id = node(id).inputs[0];
  return id;
}

void Compiler::place_inputs() {
  for (std::size_t i = 0; i < source_.inputs.size(); ++i) {
    const NodeId id = source_.inputs[i];
    program_.inputs.push_back(node(id).spec);
    value(id) = {{Place::Kind::external, i}, -1};
  }
}

void Compiler::place_outputs() {
  const std::size_t inputs = source_.inputs.size();
  for (std::size_t k = 0; k < source_.outputs.size(); ++k) {
    program_.outputs.push_back(node(source_.outputs[k]).spec);
    homes_.push_back({Place::Kind::external, inputs + k});
  }
  for (const auto& [output, input] : options_.donate) homes_[output].at = input;
  options_.donate.clear();  // they are not those of the bodies of scans
  for (std::size_t k = 0; k < homes_.size(); ++k) {
    const NodeId root = root_of(source_.outputs[k]);
    const OpKind kind = node(root).op->kind;
    if (kind == OpKind::input || kind == OpKind::constant || value(root).place.kind != Place::Kind::none)
      continue;
    if (homes_[k].at >= inputs) {
      value(root) = {homes_[k], -1};
      continue;
    }
    over_.emplace(root, homes_[k].at);
    // Not those of sums: what is added to a matrix by several products is made in one walk over it, if nothing in between has a place
    // that others could read.
    for (NodeId before : written_over(graph_.nodes(), source_.inputs[homes_[k].at], root))
      if (!node(before).op->is_addition) over_.emplace(before, homes_[k].at);
  }
}

bool Compiler::take_input(NodeId id) {
  const auto donated = over_.find(id);
  if (donated == over_.end() || lives_over_.contains(donated->second) ||
      last_reader_[uz(source_.inputs[donated->second])] >= group_)
    return false;
  live_over(id, donated->second);
  return true;
}

void Compiler::live_over(NodeId id, std::size_t input) {
  value(id) = {{Place::Kind::external, input}, -1};
  lives_over_[input] = id;
}

void Compiler::copy_outputs() {
  struct Late {
    NodeId id;
    Place from, to;
    int buffer;
  };
  std::vector<Late> over_inputs;
  for (std::size_t k = 0; k < homes_.size(); ++k) {
    const NodeId id = source_.outputs[k];
    const Value& v = value(root_of(id));
    if (v.place == homes_[k]) continue;
    if (homes_[k].at < source_.inputs.size()) over_inputs.push_back({id, v.place, homes_[k], v.buffer});
    else copy(id, use(id), homes_[k]);
  }
  for (Late& late : over_inputs)  // an input that another of these copies is written over
    if (std::ranges::find(over_inputs, late.from, &Late::to) != over_inputs.end()) {
      late.buffer = new_buffer(node(late.id).spec.bytes());
      late.from = copy(late.id, late.from, {Place::Kind::arena, uz(late.buffer)});
    }
  for (const Late& late : over_inputs) {
    if (late.buffer >= 0) buffers_[uz(late.buffer)].last = now();
    copy(late.id, late.from, late.to);
  }
}

Place Compiler::copy(NodeId id, Place from, Place to) {
  program_.code.push_back(
      {.in = {from}, .out = to, .bytes = node(id).spec.bytes(), .node = id, .loc = node(id).loc});
  return to;
}

int Compiler::new_buffer(std::size_t bytes) {
  buffers_.push_back({bytes, now(), now()});
  return static_cast<int>(buffers_.size()) - 1;
}

void Compiler::give_home(NodeId id) {
  Value& v = value(id);
  if (v.place.kind != Place::Kind::none || take_input(id)) return;
  v.buffer = new_buffer(node(id).spec.bytes());
  v.place = {Place::Kind::arena, uz(v.buffer)};
}

Place Compiler::use(NodeId id) {
  const Value& v = value(root_of(id));
  if (v.buffer >= 0) buffers_[uz(v.buffer)].last = now();
  return v.place;
}

template <class MayReuse>
bool Compiler::take_over(NodeId id, const std::vector<NodeId>& inputs, MayReuse may_reuse) {
  if (!options_.reuse || value(id).place.kind != Place::Kind::none) return false;
  if (take_input(id)) return true;
  const auto dies = [&](std::size_t i) {
    const NodeId root = root_of(inputs[i]);
    if (!may_reuse(i) || last_reader_[uz(root)] != group_) return false;
    for (std::size_t j = 0; j < inputs.size(); ++j)  // the same bytes under another shape
      if (root_of(inputs[j]) == root && !may_reuse(j)) return false;
    return true;
  };
  if (const auto donated = over_.find(id); donated != over_.end())
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const NodeId from = root_of(inputs[i]);
      const auto owner = lives_over_.find(donated->second);
      const NodeId last = owner == lives_over_.end() ? source_.inputs[donated->second] : owner->second;
      if (from != last || !dies(i)) continue;
      live_over(id, donated->second);
      return true;
    }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Value& v = value(root_of(inputs[i]));
    if (v.buffer < 0 || !dies(i)) continue;
    value(id) = v;
    return true;
  }
  return false;
}

void Compiler::find_last_readers() {
  constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

  std::size_t last_scan = 0;
  last_reader_.assign(values_.size(), 0);
  for (std::size_t g = 0; g < fusion_.order.size(); ++g)
    for (NodeId id : fusion_.order[g].nodes) {
      for (NodeId in : fusion_.inputs_of(graph_, id)) last_reader_[uz(root_of(in))] = g;
      if (is_scan(node(id))) last_scan = g;
    }
  // A checkpointed scan may read its inputs again when another scan pulls its values.
  for (NodeId id = 0; id < graph_.size(); ++id)
    if (live_[uz(id)] && node(id).op->kind == OpKind::scan)
      for (NodeId in : node(id).inputs) {
        std::size_t& last = last_reader_[uz(root_of(in))];
        last = std::max(last, last_scan);
      }
  for (NodeId id : source_.outputs) last_reader_[uz(root_of(id))] = kNever;
}

// ---- instructions ----

void Compiler::give_scratch(Instruction& instruction, std::size_t bytes) {
  if (bytes > 0) instruction.in.push_back({Place::Kind::arena, uz(new_buffer(bytes))});
}

void Compiler::issue(const Fusion::Group& group) {
  if (group.nodes.size() > 1) issue_cluster(group);
  else issue(group.nodes[0]);
}

void Compiler::issue(NodeId id) {
  const GraphNode& n = node(id);
  switch (n.op->kind) {
    case OpKind::input:
      return;
    case OpKind::constant:
      value(id) = {{Place::Kind::literal, program_.literals.size()}, -1};
      program_.literals.push_back(literal_of(n).to(options_.device));
      return;
    case OpKind::scan:
      return issue_scan(id);
    case OpKind::final:
    case OpKind::stack:
      return;  // placed with their scan
    case OpKind::value:
      break;
  }
  if (layouts_.read_in_place.contains(id)) return;
  if (n.op->view && layouts_.written_as.contains(n.inputs[0])) return;
  if (fusion_.sums.contains(id)) return issue_sum(id);
  const NodeCall call(graph_.nodes(), n);
  WithScratch<OpKernel> kernel =
      backend() ? backend()->kernel(call, n.loc, kernel_options()) : WithScratch<OpKernel>{n.op->cpu(call)};
  Instruction ins{.op = n.op,
                  .kernel = std::move(kernel.run),
                  .node = id,
                  .loc = n.loc,
                  .source = std::move(kernel.source)};
  for (NodeId in : n.inputs) ins.in.push_back(use(in));
  give_scratch(ins, kernel.scratch_bytes);
  const auto may_reuse = [&](std::size_t i) {
    return n.op->may_reuse && n.op->may_reuse(call, static_cast<int>(i));
  };
  if (!take_over(id, n.inputs, may_reuse)) give_home(id);
  ins.out = value(id).place;
  program_.code.push_back(std::move(ins));
}

void Compiler::issue_sum(NodeId id) {
  const NodeId term = fusion_.sums.at(id);
  const std::vector<NodeId> inputs = fusion_.inputs_of(graph_, id);
  Instruction ins{.op = node(id).op,
                  .kernel = node(term).op->kernel_adding_to(NodeCall(graph_.nodes(), node(term))),
                  .node = id,
                  .with = {term},
                  .loc = node(id).loc};
  for (NodeId in : inputs) ins.in.push_back(use(in));
  if (!take_over(id, inputs, [&](std::size_t i) { return i + 1 == inputs.size(); })) give_home(id);
  ins.out = value(id).place;
  program_.code.push_back(std::move(ins));
}

void Compiler::issue_cluster(const Fusion::Group& group) {
  const std::vector<NodeId>& nodes = group.nodes;
  const ClusterText text = text_of(group, graph_, readers_);
  auto call = std::make_shared<ClusterCall>(ClusterCall{text.ops, {}, group.shape});
  const std::vector<Spec>& specs = call->in;
  for (NodeId in : text.inputs) call->in.push_back(node(in).spec);
  WithScratch<ClusterKernel> kernel = backend() ? backend()->cluster(*call, kernel_options())
                                                : WithScratch<ClusterKernel>{cluster_kernel(*call)};
  Instruction ins{.op = node(nodes.back()).op,
                  .cluster = std::move(kernel.run),
                  .call = call,
                  .node = nodes.back(),
                  .with = {nodes.begin(), nodes.end() - 1},
                  .loc = node(nodes.back()).loc,
                  .source = std::move(kernel.source)};
  for (NodeId in : text.inputs) ins.in.push_back(use(in));
  give_scratch(ins, kernel.scratch_bytes);
  for (std::size_t k = 0; k < nodes.size(); ++k) {
    if (text.ops[k].output < 0) continue;
    // It may write over what no later op reads, and no other writes over.
    const auto may_reuse = [&](std::size_t i) {
      const int buffer = value(root_of(text.inputs[i])).buffer;
      const auto has_taken_it = [&](NodeId other) { return buffer >= 0 && value(other).buffer == buffer; };
      return specs[i] == node(nodes[k]).spec && text.last_read[i] <= k &&
             std::ranges::none_of(nodes, has_taken_it);
    };
    if (!take_over(nodes[k], text.inputs, may_reuse)) give_home(nodes[k]);
    ins.outs.push_back(value(nodes[k]).place);
  }
  program_.code.push_back(std::move(ins));
}

// ---- the end ----

void Compiler::count_flops() {
  for (NodeId id = 0; id < graph_.size(); ++id)
    if (live_[uz(id)]) program_.flops += flops_of(graph_.nodes(), node(id));
  for (NodeId id : scan_order_) {
    const ScanInfo& info = scans_[uz(id)];
    const ScanStep& scan = *program_.code[info.instruction].scan;
    const Program& body = scan.workers[0].body;
    const double steps = static_cast<double>(scan.table.steps) * scan.table.slices;
    const double pulls = static_cast<double>(info.pulled_by.size());
    const double runs = scan.on_demand ? pulls : 1 + pulls;
    program_.flops += steps * body.flops * runs;
    program_.recomputed_flops += steps * (body.recomputed_flops * runs + body.flops * pulls);
  }
}

void Compiler::finish() {
  count_flops();
  const ArenaLayout layout = lay_out(buffers_);
  program_.arena_bytes = layout.bytes;
  for (std::size_t b = 0; b < buffers_.size(); ++b)
    program_.buffers.push_back({layout.offsets[b], buffers_[b].bytes, buffers_[b].first, buffers_[b].last});
  const auto settle = [&](Place& p) {
    if (p.kind == Place::Kind::arena) p.at = layout.offsets[p.at];
  };
  for (Instruction& ins : program_.code) {
    for (Place& p : ins.in) settle(p);
    settle(ins.out);
    for (Place& p : ins.outs) settle(p);
    if (!ins.scan) continue;
    for (StepTable::Base& base : ins.scan->table.bases) settle(base.place);
  }
}

Program compile(const std::deque<GraphNode>& nodes, const std::vector<NodeId>& inputs,
                const std::vector<NodeId>& outputs, const PlanOptions& options, bool of_scan) {
  const Passed passed = run_passes(nodes, inputs, outputs, options, of_scan);
  OpByOp op_by_op;
  for (;;)  // each time one scan more, at least, runs op by op
    if (std::optional<Program> program = Compiler(passed.lowered, options, of_scan, op_by_op).run()) {
      program->recomputed_flops += passed.recomputed_flops;
      return std::move(*program);
    }
}

}  // namespace nestgrad
