// From a lowered graph to a Program: where each value lives and when it dies.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "engine/backend.h"
#include "engine/body.h"
#include "engine/cluster.h"
#include "engine/fusion.h"
#include "engine/lower.h"
#include "engine/program.h"
#include "engine/rematerialize.h"

namespace nestgrad {

namespace {

struct CannotFuse {};  // never leaves this file

class Compiler {
 public:
  Compiler(Lowered lowered, const PlanOptions& options)
      : source_(std::move(lowered)),
        graph_(*source_.graph),
        options_(options),
        values_(static_cast<std::size_t>(graph_.size())) {}

  Program run() {
    program_.graph = source_.graph;
    live_ = live_nodes(graph_.nodes(), source_.outputs, source_.inputs);
    readers_ = readers_of(graph_, live_, source_.outputs);
    slice_scans();
    layouts_ =
        lay_out_steps(graph_, live_, readers_, [&](NodeId scan, NodeId what) { return part_in(scan, what); });
    fusion_ = options_.fuse ? fuse(graph_, live_, readers_, backend() == nullptr) : unfused(graph_, live_);
    find_last_readers();
    place_inputs();
    place_outputs();
    for (; group_ < fusion_.order.size(); ++group_) issue(fusion_.order[group_]);
    copy_outputs();
    extend_lazy_lifetimes();
    finish();
    fuse_scans();
    return std::move(program_);
  }

 private:
  // A value's home. `buffer` indexes buffers_ while compiling; Place::at is filled in when offsets are known.
  struct Value {
    Place place;
    int buffer = -1;
  };
  struct ScanInfo {
    std::size_t instruction = 0;
    std::vector<int> own_buffers;   // working memory
    std::vector<NodeId> pulled_by;  // scans that read a lazy stack
  };

  static std::size_t idx(std::int64_t id) { return static_cast<std::size_t>(id); }
  const Node& node(NodeId id) const { return graph_.node(id); }
  Value& value(NodeId id) { return values_[idx(id)]; }
  Backend* backend() const { return options_.device.backend(); }
  int now() const { return static_cast<int>(program_.code.size()); }

  void place_inputs() {
    for (std::size_t i = 0; i < source_.inputs.size(); ++i) {
      const NodeId id = source_.inputs[i];
      program_.inputs.push_back(node(id).spec);
      value(id) = {{Place::Kind::external, i}, -1};
    }
  }

  // The node whose bytes these are.
  NodeId root_of(NodeId id) const {
    while (node(id).op->alias || layouts_.read_in_place.contains(id)) id = node(id).inputs[0];
    return id;
  }

  // An output takes its value's place when an instruction writes that value and no earlier output claimed it.
  void place_outputs() {
    for (std::size_t k = 0; k < source_.outputs.size(); ++k) {
      const NodeId id = source_.outputs[k], root = root_of(id);
      program_.outputs.push_back(node(id).spec);
      const OpKind kind = node(root).op->kind;
      if (kind == OpKind::input || kind == OpKind::constant || value(root).place.kind != Place::Kind::none)
        continue;
      value(root) = {{Place::Kind::external, source_.inputs.size() + k}, -1};
    }
  }

  void copy_outputs() {
    for (std::size_t k = 0; k < source_.outputs.size(); ++k) {
      const NodeId id = source_.outputs[k];
      const Place home{Place::Kind::external, source_.inputs.size() + k};
      const Value& v = value(root_of(id));
      if (v.place.kind == Place::Kind::external && v.place.at == home.at) continue;
      use(id);
      Instruction copy{
          .in = {v.place}, .out = home, .bytes = node(id).spec.bytes(), .node = id, .loc = node(id).loc};
      program_.code.push_back(std::move(copy));
    }
  }

  int new_buffer(std::size_t bytes) {
    buffers_.push_back({bytes, now(), now()});
    return static_cast<int>(buffers_.size()) - 1;
  }

  // Gives id a home in the arena unless it has one (an output).
  void give_home(NodeId id) {
    Value& v = value(id);
    if (v.place.kind != Place::Kind::none) return;
    v.buffer = new_buffer(node(id).spec.bytes());
    v.place = {Place::Kind::arena, static_cast<std::size_t>(v.buffer)};
  }

  // Notes that the instruction about to be issued reads id; returns its place.
  Place use(NodeId id) {
    const Value& v = value(root_of(id));
    if (v.buffer >= 0) buffers_[static_cast<std::size_t>(v.buffer)].last = now();
    return v.place;
  }

  // ---- several ops as one instruction ----

  void issue(const Fusion::Group& group) {
    if (group.nodes.size() > 1) issue_cluster(group);
    else issue(group.nodes[0]);
  }

  void issue_sum(NodeId id) {
    const NodeId term = fusion_.sums.at(id);
    const std::vector<NodeId> inputs = fusion_.inputs_of(graph_, id);
    Instruction ins{.op = node(id).op,
                    .kernel = node(term).op->plus(NodeCall(graph_.nodes(), node(term))),
                    .node = id,
                    .with = {term},
                    .loc = node(id).loc};
    for (NodeId in : inputs) ins.in.push_back(use(in));
    if (!take_over(id, inputs, [&](std::size_t i) { return i + 1 == inputs.size(); })) give_home(id);
    ins.out = value(id).place;
    program_.code.push_back(std::move(ins));
  }

  void issue_cluster(const Fusion::Group& group) {
    const std::vector<NodeId>& nodes = group.nodes;
    const ClusterText text = text_of(group, graph_, readers_);
    auto call = std::make_shared<ClusterCall>(ClusterCall{text.ops, {}, group.shape});
    const std::vector<Spec>& specs = call->in;
    for (NodeId in : text.inputs) call->in.push_back(node(in).spec);
    Instruction ins{.op = node(nodes.back()).op,
                    .cluster = backend() ? backend()->cluster(*call) : cluster_kernel(*call),
                    .call = call,
                    .node = nodes.back(),
                    .with = {nodes.begin(), nodes.end() - 1},
                    .loc = node(nodes.back()).loc};
    for (NodeId in : text.inputs) ins.in.push_back(use(in));
    for (std::size_t k = 0; k < nodes.size(); ++k) {
      if (text.ops[k].output < 0) continue;
      // It may write over what no later op reads, and no other writes over.
      const auto may_reuse = [&](std::size_t i) {
        const int buffer = value(root_of(text.inputs[i])).buffer;
        return specs[i] == node(nodes[k]).spec && text.last_read[i] <= k &&
               std::ranges::none_of(nodes, [&](NodeId other) { return value(other).buffer == buffer; });
      };
      if (!take_over(nodes[k], text.inputs, may_reuse)) give_home(nodes[k]);
      ins.outs.push_back(value(nodes[k]).place);
    }
    program_.code.push_back(std::move(ins));
  }

  static constexpr std::size_t kNever = static_cast<std::size_t>(-1);

  void find_last_readers() {
    last_reader_.assign(values_.size(), 0);
    for (std::size_t g = 0; g < fusion_.order.size(); ++g)
      for (NodeId id : fusion_.order[g].nodes)
        for (NodeId in : fusion_.inputs_of(graph_, id)) last_reader_[idx(root_of(in))] = g;
    // A checkpointed scan may read its inputs again whenever its values are pulled.
    for (NodeId id = 0; id < graph_.size(); ++id)
      if (live_[idx(id)] && node(id).op->kind == OpKind::scan)
        for (NodeId in : node(id).inputs) last_reader_[idx(root_of(in))] = kNever;
    for (NodeId id : source_.outputs) last_reader_[idx(root_of(id))] = kNever;
  }

  void issue(NodeId id) {
    const Node& n = node(id);
    switch (n.op->kind) {
      case OpKind::input:
        return;
      case OpKind::constant:
        value(id) = {{Place::Kind::literal, program_.literals.size()}, -1};
        program_.literals.push_back(n.attrs.literal.to(options_.device));
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
    Instruction ins{.op = n.op,
                    .kernel = backend() ? backend()->kernel(call, n.loc, options_.precision) : n.op->cpu(call),
                    .node = id,
                    .loc = n.loc};
    for (NodeId in : n.inputs) ins.in.push_back(use(in));
    const auto may_reuse = [&](std::size_t i) {
      return n.op->may_reuse && n.op->may_reuse(call, static_cast<int>(i));
    };
    if (!take_over(id, n.inputs, may_reuse)) give_home(id);
    ins.out = value(id).place;
    program_.code.push_back(std::move(ins));
  }

  // Lets the output live where a dying input lived.
  template <class MayReuse>
  bool take_over(NodeId id, const std::vector<NodeId>& inputs, MayReuse may_reuse) {
    if (!options_.reuse || value(id).place.kind != Place::Kind::none) return false;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const NodeId root = root_of(inputs[i]);
      const Value& v = value(root);
      if (v.buffer < 0 || !may_reuse(i) || last_reader_[idx(root)] != group_) continue;
      bool read_otherwise = false;  // the same bytes under another shape
      for (std::size_t j = 0; j < inputs.size(); ++j)
        read_otherwise = read_otherwise || (root_of(inputs[j]) == root && !may_reuse(j));
      if (read_otherwise) continue;
      value(id) = v;
      return true;
    }
    return false;
  }

  // ---- scans ----

  // Live finals and stacks of a scan.
  struct Results {
    std::vector<NodeId> finals, stacks;
  };
  Results results_of(NodeId scan) const {
    Results out;
    for (NodeId p = scan + 1; p < graph_.size(); ++p) {
      if (!live_[idx(p)] || node(p).inputs.empty() || node(p).inputs[0] != scan) continue;
      if (node(p).op->kind == OpKind::final) out.finals.push_back(p);
      if (node(p).op->kind == OpKind::stack) out.stacks.push_back(p);
    }
    return out;
  }

  // Slices pay on a device only where a kernel does the steps of one.
  bool is_fused(NodeId scan) const { return backend() && slicings_.contains(scan); }
  void fuse_scans() {
    for (Instruction& ins : program_.code)
      if (ins.scan && is_fused(ins.node)) {
        ins.scan->fused = backend()->fuse_scan(*ins.scan, program_);
        if (!ins.scan->fused) throw CannotFuse();
      }
  }

  // Scans that pull values from each other must be cut alike, or not at all; so must those that would under
  // another checkpoint schedule, which changes no bit.
  void slice_scans() {
    if (!options_.slice) return;
    for (NodeId id = 0; id < graph_.size(); ++id) {
      if (!live_[idx(id)] || node(id).op->kind != OpKind::scan) continue;
      std::vector<NodeId> stacked;
      for (NodeId p : results_of(id).stacks) stacked.push_back(static_cast<NodeId>(node(p).attrs.ints[0]));
      auto sliced = slice_body(*node(id).attrs.body, stacked);
      if (sliced && (!backend() || backend()->suits_fused_scan(*sliced->graph)))
        slicings_.emplace(id, std::move(*sliced));
    }
    const auto extents = [&](NodeId scan) {
      const auto at = slicings_.find(scan);
      return at == slicings_.end() ? std::vector<std::int64_t>{} : at->second.extents;
    };
    for (bool again = true; again;) {
      again = false;
      for (NodeId id = 0; id < graph_.size(); ++id) {
        if (!live_[idx(id)] || node(id).op->kind != OpKind::scan) continue;
        for (NodeId in : node(id).inputs) {
          if (node(in).op->kind != OpKind::stack) continue;
          const NodeId producer = node(in).inputs[0];
          if (extents(id) == extents(producer) || !is_pulled(in, [](const Node&) { return true; })) continue;
          slicings_.erase(id), slicings_.erase(producer);
          again = true;
        }
      }
    }
  }

  // What a slice has of a value of a scan's body.
  SliceOf part_in(NodeId scan, NodeId body_node) const {
    const auto cut = slicings_.find(scan);
    if (cut != slicings_.end()) return cut->second.parts[idx(body_node)];
    return {node(scan).attrs.body->spec(body_node).bytes(), {0}, {1}, false};
  }

  View view_of(NodeId id) const { return node(id).op->view(NodeCall(graph_.nodes(), node(id))); }

  int every_of(const Node& scan) const {
    const auto asked = static_cast<int>(scan.attrs.ints[2]);
    return std::min(options_.checkpoint_every.value_or(asked), static_cast<int>(scan.attrs.ints[0]));
  }

  // Recomputed where it is read, if only scans read it, step by step, whose own segments do not straddle its
  // segments: what one of them recomputes must not take away the segment that another is reading.
  bool is_lazy(NodeId stack, int every) const {
    return every != 0 && is_pulled(stack, [&](const Node& reader) {
             return every_of(reader) == 0 || every_of(reader) == every;
           });
  }
  // Do only such scans read it, step by step?
  template <class Suits>
  bool is_pulled(NodeId stack, Suits suits) const {
    if (value_is_output(stack)) return false;
    return std::ranges::all_of(readers_[idx(stack)], [&](const Reader& r) {
      return reads_step_by_step(graph_, r) && suits(node(r.id));
    });
  }
  bool value_is_output(NodeId id) const {
    return std::ranges::any_of(source_.outputs, [&](NodeId out) { return root_of(out) == id; });
  }

  // Memory of one worker, filled from the front.
  struct WorkerMemory {
    std::size_t bytes = 0;
    std::size_t take(std::size_t size) {
      const std::size_t at = bytes;
      bytes += (size + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
      return at;
    }
  };

  void issue_scan(NodeId id) {
    const Node& n = node(id);
    const Body& body = *n.attrs.body;
    auto scan = std::make_unique<ScanStep>();
    scan->steps = static_cast<int>(n.attrs.ints[0]);
    scan->reverse = n.attrs.ints[1] != 0;
    scan->every = every_of(n);
    const auto cut = slicings_.find(id);
    const SlicedBody* sliced = cut == slicings_.end() ? nullptr : &cut->second;
    if (sliced) scan->slices = sliced->slices();
    const auto part_of = [&](NodeId body_node) { return part_in(id, body_node); };

    const Results results = results_of(id);
    std::vector<NodeId> finals(static_cast<std::size_t>(body.carries), -1), wanted,
        body_inputs(static_cast<std::size_t>(body.inputs()));
    for (NodeId p : results.finals) finals[static_cast<std::size_t>(node(p).attrs.ints[0])] = p;
    const std::vector<NodeId>& stacks = results.stacks;

    // Which carries matter: those asked for, and those that feed what matters.
    for (int i = 0; i < body.inputs(); ++i) body_inputs[static_cast<std::size_t>(i)] = i;
    for (NodeId p : stacks) wanted.push_back(static_cast<NodeId>(node(p).attrs.ints[0]));
    std::vector<char> carried(static_cast<std::size_t>(body.carries), 0);
    for (std::size_t i = 0; i < finals.size(); ++i) carried[i] = finals[i] >= 0;
    std::vector<char> body_live;
    for (bool grew = true; grew;) {
      grew = false;
      std::vector<NodeId> outs = wanted;
      for (std::size_t i = 0; i < carried.size(); ++i)
        if (carried[i]) outs.push_back(body.outs[i]);
      body_live = live_nodes(body.nodes, outs, body_inputs);
      for (std::size_t i = 0; i < carried.size(); ++i)
        if (body_live[i] && !carried[i]) carried[i] = grew = true;
    }

    std::vector<NodeId> ins, outs;
    std::vector<std::size_t> carry_positions;
    for (std::size_t i = 0; i < carried.size(); ++i)
      if (carried[i])
        ins.push_back(static_cast<NodeId>(i)), outs.push_back(body.outs[i]), carry_positions.push_back(i);
    const int first_x = body.carries, first_const = body.carries + body.xs;
    for (int i = first_x; i < body.inputs(); ++i)
      if (body_live[static_cast<std::size_t>(i)]) ins.push_back(i);
    ScanInfo info{.instruction = program_.code.size()};
    const auto scratch = [&](std::size_t bytes) {
      info.own_buffers.push_back(new_buffer(bytes));
      return static_cast<std::size_t>(info.own_buffers.back());
    };
    WorkerMemory memory;
    const auto slices = static_cast<std::size_t>(scan->slices);
    if (scan->every) scan->copies = (scan->steps + scan->every - 1) / scan->every;
    else if (is_fused(id) &&
             std::ranges::any_of(n.inputs, [&](NodeId in) { return lazy_stacks_.contains(in); }))
      scan->copies = 2;
    const auto copies = static_cast<std::size_t>(scan->copies);
    for (std::size_t i : carry_positions) {
      const auto in = static_cast<NodeId>(i);
      ScanStep::Carry c{.init = use(n.inputs[i]), .part = part_of(in), .dtype = body.spec(in).dtype};
      c.ping = memory.take(c.part.bytes);
      c.pong = memory.take(c.part.bytes);
      if (copies) c.checkpoints = scratch(c.part.bytes * slices * copies);
      if (finals[i] >= 0) {
        give_home(finals[i]);
        c.final_value = value(finals[i]).place;
        if (c.part.partial) c.terms = scratch(c.part.bytes * slices);
      }
      scan->carries.push_back(std::move(c));
    }
    for (int i = first_x; i < body.inputs(); ++i) {
      if (!body_live[static_cast<std::size_t>(i)]) continue;
      const NodeId source = n.inputs[static_cast<std::size_t>(i)];
      if (i >= first_const) {
        scan->consts.push_back({use(source), part_of(i)});
        continue;
      }
      ScanStep::PerStep x{.where = stepped(part_of(i), body.spec(i).bytes())};
      if (const auto lazy = lazy_stacks_.find(source); lazy != lazy_stacks_.end()) {
        ScanInfo& producer = scans_[idx(lazy->second.first)];
        if (producer.pulled_by.empty() || producer.pulled_by.back() != id) producer.pulled_by.push_back(id);
        x.producer = static_cast<int>(producer.instruction);
        x.stack = lazy->second.second;
      } else {
        x.source = use(source);
        if (const auto at = layouts_.slice_by_slice.find(source); at != layouts_.slice_by_slice.end())
          x.where = at->second;
        if (layouts_.read_in_place.contains(source))
          x.where = *stepped(part_of(i), body.spec(i), view_of(source));
      }
      scan->xs.push_back(std::move(x));
    }
    for (NodeId p : stacks) {
      const auto what = static_cast<NodeId>(node(p).attrs.ints[0]);
      ScanStep::Stack s{.where = stepped(part_of(what), body.spec(what).bytes()), .part = part_of(what)};
      const auto carry = std::ranges::find(carry_positions, idx(what));
      if (carry != carry_positions.end() && !s.part.partial) {
        int& stack = scan->carries[idx(carry - carry_positions.begin())].stack;
        s.of_carry = stack < 0;
        if (s.of_carry) stack = static_cast<int>(scan->stacks.size());
      }
      if (!s.of_carry) outs.push_back(what);
      s.lazy = is_lazy(p, scan->every);
      if (s.lazy) {
        lazy_stacks_.emplace(p, std::pair{id, scan->stacks.size()});
        const std::size_t segment = s.part.bytes * static_cast<std::size_t>(scan->every);
        s.buffer = is_fused(id) ? scratch(segment * slices) : memory.take(segment);
      } else {
        NodeId home = p;
        if (const auto at = layouts_.slice_by_slice.find(p); at != layouts_.slice_by_slice.end())
          s.where = at->second;
        if (const auto at = layouts_.written_as.find(p); at != layouts_.written_as.end()) {
          home = at->second;
          s.where = *stepped(s.part, body.spec(what), *inverse(view_of(home), node(p).spec, node(home).spec));
        }
        give_home(home);
        s.stored = value(home).place;
        s.buffer = memory.take(s.part.bytes);
      }
      scan->stacks.push_back(std::move(s));
    }

    const auto compiled = [&] {
      if (!sliced) return compile(body.nodes, ins, outs, options_);
      const auto made = [&](std::vector<NodeId> ids) {
        for (NodeId& i : ids) i = sliced->made[idx(i)];
        return ids;
      };
      return compile(sliced->graph->nodes(), made(ins), made(outs), options_);
    };
    scan->workers.resize(static_cast<std::size_t>(std::min(scan->slices, options_.workers)));
    for (ScanStep::Worker& w : scan->workers) {
      w.body = compiled();
      w.externals.resize(ins.size() + outs.size());
      w.carry_in.resize(scan->carries.size());
    }
    scan->body_arena = memory.take(scan->workers[0].body.arena_bytes);
    scan->memory_bytes = memory.bytes;
    scan->memory = scratch(is_fused(id) ? 0 : memory.bytes * scan->workers.size());

    if (scans_.size() < values_.size()) scans_.resize(values_.size());
    scans_[idx(id)] = std::move(info);
    scan_order_.push_back(id);
    program_.code.push_back(Instruction{.op = n.op, .scan = std::move(scan), .node = id, .loc = n.loc});
  }

  // A scan whose values are pulled later needs its memory, and everything it reads, until the last pull.
  void extend_lazy_lifetimes() {
    for (std::size_t k = scan_order_.size(); k-- > 0;) {
      ScanInfo& info = scans_[idx(scan_order_[k])];
      int until = static_cast<int>(info.instruction);
      for (NodeId reader : info.pulled_by) until = std::max(until, last_pull_[reader]);
      last_pull_[scan_order_[k]] = until;
      if (info.pulled_by.empty()) continue;
      for (int b : info.own_buffers) extend(b, until);
      for (NodeId in : node(scan_order_[k]).inputs)
        if (value(root_of(in)).buffer >= 0) extend(value(root_of(in)).buffer, until);
    }
  }
  void extend(int buffer, int until) {
    int& last = buffers_[static_cast<std::size_t>(buffer)].last;
    last = std::max(last, until);
  }

  void count_flops() {
    for (NodeId id = 0; id < graph_.size(); ++id) {
      const Node& n = node(id);
      if (live_[idx(id)] && n.op->kind == OpKind::value && !n.op->alias && n.op->cost)
        program_.flops += n.op->cost(NodeCall(graph_.nodes(), n)).flops;
    }
    for (NodeId id : scan_order_) {
      const ScanInfo& info = scans_[idx(id)];
      const ScanStep& scan = *program_.code[info.instruction].scan;
      const Program& body = scan.workers[0].body;
      const double steps = static_cast<double>(scan.steps) * scan.slices;
      const double pulls = static_cast<double>(info.pulled_by.size());
      program_.flops += steps * body.flops * (1 + pulls);
      program_.recomputed_flops += steps * (body.recomputed_flops * (1 + pulls) + body.flops * pulls);
    }
  }

  // Replaces buffer numbers by offsets.
  void finish() {
    count_flops();
    const ArenaLayout layout = lay_out(buffers_);
    program_.arena_bytes = layout.bytes;
    for (std::size_t b = 0; b < buffers_.size(); ++b)
      program_.buffers.push_back({layout.offsets[b], buffers_[b].bytes, buffers_[b].first, buffers_[b].last});
    const auto settle = [&](Place& p) {
      if (p.kind == Place::Kind::arena) p.at = layout.offsets[p.at];
    };
    const auto settle_offset = [&](std::size_t& at) { at = layout.offsets[at]; };
    for (Instruction& ins : program_.code) {
      for (Place& p : ins.in) settle(p);
      settle(ins.out);
      for (Place& p : ins.outs) settle(p);
      if (!ins.scan) continue;
      ScanStep& s = *ins.scan;
      for (ScanStep::Carry& c : s.carries) {
        settle(c.init), settle(c.final_value);
        if (s.copies) settle_offset(c.checkpoints);
        if (c.part.partial && c.final_value.kind != Place::Kind::none) settle_offset(c.terms);
      }
      for (ScanStep::PerStep& x : s.xs) settle(x.source);
      for (ScanStep::Const& c : s.consts) settle(c.source);
      for (ScanStep::Stack& st : s.stacks) {
        settle(st.stored);
        if (st.lazy && is_fused(ins.node)) settle_offset(st.buffer);
      }
      settle_offset(s.memory);
    }
  }

  Lowered source_;
  const Graph& graph_;
  PlanOptions options_;
  Program program_;
  std::vector<char> live_;
  Readers readers_;
  std::vector<Value> values_;
  std::vector<Lifetime> buffers_;
  std::size_t group_ = 0;                 // of fusion_.order: what is being issued
  std::vector<std::size_t> last_reader_;  // of a value's bytes: the last group that reads them
  Fusion fusion_;
  std::unordered_map<NodeId, SlicedBody> slicings_;
  StepLayouts layouts_;
  std::vector<ScanInfo> scans_;
  std::vector<NodeId> scan_order_;
  std::unordered_map<NodeId, int> last_pull_;
  std::unordered_map<NodeId, std::pair<NodeId, std::size_t>>
      lazy_stacks_;  // stack node -> its scan, position
};

}  // namespace

Program compile(const std::deque<Node>& nodes, const std::vector<NodeId>& inputs,
                const std::vector<NodeId>& outputs, const PlanOptions& options) {
  Lowered lowered = lower(nodes, inputs, outputs, options);
  if (options.rematerialize) lowered = rematerialize(lowered);
  try {
    return Compiler(lowered, options).run();
  } catch (const CannotFuse&) {
    PlanOptions whole = options;
    whole.slice = false;
    return Compiler(std::move(lowered), whole).run();
  }
}

}  // namespace nestgrad
