// Scans in a plan: what is cut into slices, what is stored
// and what recomputed, and what one step reads and writes.
#include <algorithm>

#include "engine/core/node_call.h"
#include "engine/plan/compiler.h"
#include "engine/plan/liveness.h"

namespace nestgrad {

// ---- slices ----

void Compiler::slice_scans() {
  if (!options_.slice) return;
  for (NodeId id = 0; id < graph_.size(); ++id) {
    if (!live_[uz(id)] || !is_scan(node(id)) || op_by_op_.contains(id)) continue;
    auto sliced = slice_scan(graph_, readers_, id);
    if (!sliced) continue;
    std::string why = backend() ? backend()->why_op_by_op(*sliced->graph, sliced->slices()) : "";
    if (why.empty()) slicings_.emplace(id, std::move(*sliced));
    else op_by_op_.emplace(id, std::move(why));
  }
  keep_op_by_op_together();
}

void Compiler::keep_op_by_op_together() {
  const auto join = [&](NodeId scan, NodeId with) {
    if (!op_by_op_.contains(with) || slicings_.erase(scan) == 0) return false;
    op_by_op_.emplace(scan, "so does a scan that it shares the values of steps with");
    return true;
  };
  for (bool grew = !op_by_op_.empty(); grew;) {
    grew = false;
    for (NodeId id = 0; id < graph_.size(); ++id) {
      if (!live_[uz(id)] || !is_scan(node(id))) continue;
      for (NodeId in : node(id).inputs) {
        if (node(in).op->kind != OpKind::stack) continue;
        const NodeId maker = node(in).inputs[0];
        if (join(id, maker) || join(maker, id)) grew = true;
      }
    }
  }
}

bool Compiler::fuse_scans() {
  bool all = true;
  for (Instruction& ins : program_.code) {
    if (!ins.scan || !is_fused(ins.node)) continue;
    auto [kernel, why_not] = backend()->loop_kernel(*ins.scan, program_, kernel_options());
    ins.scan->kernel = std::move(kernel);
    if (ins.scan->kernel) continue;
    op_by_op_.emplace(ins.node, std::move(why_not));
    all = false;
  }
  return all;
}

SliceOf Compiler::part_in(NodeId scan, NodeId body_node) const {
  const auto cut = slicings_.find(scan);
  if (cut != slicings_.end()) return cut->second.parts[uz(body_node)];
  return {body_of(node(scan)).spec(body_node).bytes(), {0}, {1}, false};
}

// ---- what is recomputed ----

int Compiler::every_of(const GraphNode& scan) const {
  const ScanAttrs& attrs = scan.attrs.as<ScanAttrs>();
  if (attrs.recomputes) return attrs.every;
  return std::min(options_.checkpoint_every.value_or(attrs.every), static_cast<int>(attrs.steps));
}

NodeId Compiler::recomputed_by(NodeId stack) const {
  const auto& readers = readers_[uz(stack)];
  return !readers.empty() && begins_segments(graph_, readers[0]) ? readers[0].id : -1;
}

bool Compiler::is_lazy(NodeId stack, int every) const {
  // A slice has recomputed for it what the slice of the same number makes: it must be all that it reads.
  if (every == 0) return false;
  const SliceOf made = part_in(node(stack).inputs[0], shown_by(node(stack)));
  return std::ranges::all_of(readers_[uz(stack)], [&](const Reader& r) {
    if (!reads_step_by_step(graph_, r)) return false;
    const int other = every_of(node(r.id));
    return (other == 0 || other == every) && made.same_bytes(part_in(r.id, r.operand));
  });
}

void Compiler::extend_lazy_lifetimes() {
  for (std::size_t k = scan_order_.size(); k-- > 0;) {
    ScanInfo& info = scans_[uz(scan_order_[k])];
    int until = static_cast<int>(info.instruction);
    for (NodeId reader : info.pulled_by) until = std::max(until, last_pull_[reader]);
    last_pull_[scan_order_[k]] = until;
    if (info.pulled_by.empty()) continue;
    for (int b : info.own_buffers) extend(b, until);
    for (NodeId in : node(scan_order_[k]).inputs)
      if (value(root_of(in)).buffer >= 0) extend(value(root_of(in)).buffer, until);
  }
}

void Compiler::extend(int buffer, int until) {
  int& last = buffers_[static_cast<std::size_t>(buffer)].last;
  last = std::max(last, until);
}

// ---- one scan ----

// Makes the instruction of one scan.
class ScanCompiler {
 public:
  ScanCompiler(Compiler& compiler, NodeId id)
      : c_(compiler),
        id_(id),
        node_(compiler.node(id)),
        attrs_(node_.attrs.as<ScanAttrs>()),
        body_(body_of(node_)),
        results_(results_of(compiler.graph_, compiler.readers_, id)),
        scan_(std::make_unique<ScanStep>()),
        info_{.instruction = compiler.program_.code.size()} {
    const auto cut = compiler.slicings_.find(id);
    if (cut != compiler.slicings_.end()) sliced_ = &cut->second;
  }

  void issue() {
    table_.steps = static_cast<int>(attrs_.steps);
    table_.reverse = attrs_.reverse;
    if (sliced_) table_.slices = sliced_->slices();
    if (const auto why = c_.op_by_op_.find(id_); why != c_.op_by_op_.end()) scan_->why_op_by_op = why->second;
    scan_->every = c_.every_of(node_);
    for (NodeId p : results_.stacks)
      if (const NodeId again = c_.recomputed_by(p); again >= 0) scan_->every = c_.every_of(c_.node(again));
    if (!is_made_again()) scan_->every = 0;
    if (scan_->every) scan_->copies = (table_.steps - 1) / scan_->every;
    else if (c_.is_fused(id_) &&
             std::ranges::any_of(node_.inputs, [&](NodeId in) { return c_.lazy_stacks_.contains(in); }))
      scan_->copies = 2;
    find_live();
    add_carries();
    add_inputs();
    add_stacks();
    add_workers();
    info_.carries = carries_;

    if (c_.scans_.size() < c_.values_.size()) c_.scans_.resize(c_.values_.size());
    c_.scans_[uz(id_)] = std::move(info_);
    c_.scan_order_.push_back(id_);
    c_.program_.code.push_back(
        Instruction{.op = node_.op, .scan = std::move(scan_), .node = id_, .loc = node_.loc});
  }

 private:
  // Memory of one worker, filled from the front.
  struct WorkerMemory {
    std::size_t bytes = 0;
    std::int64_t take(std::size_t size) {
      const auto at = static_cast<std::int64_t>(bytes);
      bytes += (size + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
      return at;
    }
  };

  SliceOf part_of(NodeId body_node) const { return c_.part_in(id_, body_node); }
  Place scratch(std::size_t bytes) {
    info_.own_buffers.push_back(c_.new_buffer(bytes));
    return {Place::Kind::arena, uz(info_.own_buffers.back())};
  }
  StepPart part(const SliceOf& p) { return table_.part(p.bytes, p.at, p.owner); }
  StepPart part(const SliceOf& p, const Stepped& where) { return table_.part(p.bytes, where.at, p.owner); }

  // Are steps of this scan computed again where they are read? Else no carries are kept for that: those of a
  // derivative hold its sums over all steps, as large as the weights that the steps share.
  bool is_made_again() const {
    return attrs_.recomputes || std::ranges::any_of(results_.stacks, [&](NodeId p) {
             return c_.recomputed_by(p) >= 0 || c_.is_lazy(p, c_.every_of(node_));
           });
  }

  // Which carries and inputs matter: those asked for, and those that feed what matters.
  void find_live() {
    finals_.assign(uz(body_.carries), -1);
    for (NodeId p : results_.finals) finals_[uz(c_.node(p).attrs.as<FinalAttrs>().carry)] = p;
    std::vector<char> carried(finals_.size(), 0);
    for (std::size_t i = 0; i < finals_.size(); ++i) carried[i] = finals_[i] >= 0;
    std::vector<NodeId> inputs(uz(body_.inputs()));
    for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i] = static_cast<NodeId>(i);
    for (bool grew = true; grew;) {
      grew = false;
      std::vector<NodeId> outs;
      for (NodeId p : results_.stacks) outs.push_back(shown_by(c_.node(p)));
      for (std::size_t i = 0; i < carried.size(); ++i)
        if (carried[i]) outs.push_back(body_.outs[i]);
      live_ = live_nodes(body_.nodes, outs, inputs);
      for (std::size_t i = 0; i < carried.size(); ++i)
        if (live_[i] && !carried[i]) carried[i] = grew = true;
    }
    for (std::size_t i = 0; i < carried.size(); ++i)
      if (carried[i])
        (stays_as_it_is(static_cast<NodeId>(i)) ? unchanged_ : carries_).push_back(static_cast<NodeId>(i));
  }

  // A carry that each step hands on, and that nobody reads behind the steps, is a constant of them.
  bool stays_as_it_is(NodeId carry) const {
    if (body_.outs[uz(carry)] != carry || finals_[uz(carry)] >= 0 || attrs_.recomputes ||
        part_of(carry).partial)
      return false;
    return std::ranges::none_of(results_.stacks, [&](NodeId p) { return shown_by(c_.node(p)) == carry; });
  }

  void add_carries() {
    const std::size_t slices = uz(table_.slices), copies = uz(scan_->copies);
    for (NodeId in : carries_) {
      ins_.push_back(in), outs_.push_back(body_.outs[uz(in)]);
      const SliceOf cut = part_of(in);
      StepCarry c{.part = part(cut),
                  .dtype = body_.spec(in).dtype,
                  .init = table_.base(begin_of(in)),
                  .partial = cut.partial};
      if (attrs_.recomputes) c.copies = table_.base(copies_of_other(in));
      else if (copies) c.copies = table_.base(scratch(cut.bytes * slices * copies));
      if (const NodeId last = finals_[uz(in)]; last >= 0) {
        c_.give_home(last);
        c.final_value = table_.base(c_.value(last).place);
        if (cut.partial) c.terms = table_.base(scratch(cut.bytes * slices));
      }
      table_.carries.push_back(c);
    }
  }

  // What a carry begins with. A scan that recomputes the carries of another one begins with what that one began
  // with, and goes on with what that one keeps: it needs both until it is pulled.
  Place begin_of(NodeId carry) {
    const NodeId in = node_.inputs[uz(carry)];
    if (!attrs_.recomputes) return c_.use(in);
    const GraphNode& stack = c_.node(in);
    const NodeId first = c_.root_of(c_.node(stack.inputs[0]).inputs[uz(shown_by(stack))]);
    if (c_.value(first).buffer >= 0) info_.own_buffers.push_back(c_.value(first).buffer);
    return c_.use(first);
  }
  Place copies_of_other(NodeId carry) {
    const GraphNode& stack = c_.node(node_.inputs[uz(carry)]);
    const Compiler::ScanInfo& other = c_.scans_[uz(stack.inputs[0])];
    const StepTable& table = c_.program_.code[other.instruction].scan->table;
    const auto position = std::ranges::find(other.carries, shown_by(stack)) - other.carries.begin();
    const Place place = table.bases[uz(table.carries[uz(position)].copies)].place;
    info_.own_buffers.push_back(static_cast<int>(place.at));
    c_.extend(info_.own_buffers.back(), c_.now());
    return place;
  }

  void add_inputs() {
    const int first_const = body_.carries + body_.xs;
    for (NodeId i = body_.carries; i < body_.inputs(); ++i) {
      if (!live_[uz(i)]) continue;
      ins_.push_back(i);
      const NodeId source = node_.inputs[uz(i)];
      if (i >= first_const)
        table_.constants.push_back({.part = part(part_of(i)), .base = table_.base(c_.use(source))});
      else if (const auto lazy = c_.lazy_stacks_.find(source); lazy != c_.lazy_stacks_.end())
        table_.xs.push_back(recomputed(lazy->second.first, lazy->second.second));
      else table_.xs.push_back(stored(i, source));
    }
    for (NodeId i : unchanged_) {
      ins_.push_back(i);
      table_.constants.push_back(
          {.part = part(part_of(i)), .base = table_.base(c_.use(node_.inputs[uz(i)]))});
    }
  }

  StepValue stored(NodeId in, NodeId source) {
    const SliceOf cut = part_of(in);
    const StepLayouts& layouts = c_.layouts_;
    Stepped where = stepped(cut, body_.spec(in).bytes());
    if (const auto at = layouts.slice_by_slice.find(source); at != layouts.slice_by_slice.end())
      where = at->second;
    if (layouts.read_in_place.contains(source)) where = *stepped(cut, body_.spec(in), view_of(source));
    return {.part = part(cut, where),
            .base = table_.base(c_.use(source)),
            .stride = static_cast<std::int64_t>(where.stride)};
  }

  // A stack of another scan, where that scan recomputes it.
  StepValue recomputed(NodeId scan, std::size_t stack) {
    Compiler::ScanInfo& info = c_.scans_[uz(scan)];
    const auto maker = static_cast<int>(info.instruction);
    if (info.pulled_by.empty() || info.pulled_by.back() != id_) info.pulled_by.push_back(id_);
    if (std::ranges::find(scan_->makers, maker) == scan_->makers.end()) scan_->makers.push_back(maker);
    const StepTable& other = c_.program_.code[info.instruction].scan->table;
    const StepValue& made = other.stacks[stack];
    const StepTable::Base& base = other.bases[uz(made.base)];
    const auto begin = made.part.at, end = begin + other.slices;
    return {
        .part = table_.part(uz(made.part.bytes), {other.offsets.begin() + begin, other.offsets.begin() + end},
                            {other.owners.begin() + begin, other.owners.begin() + end}),
        .base = table_.base(base.place, base.per_worker),
        .stride = made.stride,
        .window = made.window};
  }

  void add_stacks() {
    scan_->on_demand = attrs_.recomputes;
    for (NodeId p : results_.stacks) {
      if (c_.recomputed_by(p) >= 0) continue;
      const NodeId what = shown_by(c_.node(p));
      const SliceOf cut = part_of(what);
      const bool lazy = c_.is_lazy(p, c_.every_of(node_));
      scan_->on_demand = scan_->on_demand && lazy;
      StepValue s = lazy ? windowed(cut) : stored_stack(cut, p, what);
      const auto carry = std::ranges::find(carries_, what);
      if (carry != carries_.end() && !cut.partial) {
        int& stack = table_.carries[uz(carry - carries_.begin())].stack;
        s.of_carry = stack < 0;
        if (s.of_carry) stack = static_cast<int>(table_.stacks.size());
      }
      if (!s.of_carry) outs_.push_back(what);
      if (lazy) c_.lazy_stacks_.emplace(p, std::pair{id_, table_.stacks.size()});
      table_.stacks.push_back(s);
    }
  }

  // Room for one segment: in each worker's memory, or for each slice where a kernel takes all of them.
  StepValue windowed(const SliceOf& cut) {
    const std::size_t slices = uz(table_.slices), segment = cut.bytes * uz(scan_->every);
    StepValue out{.stride = static_cast<std::int64_t>(cut.bytes), .window = scan_->every};
    std::vector<std::size_t> at(slices, 0);
    if (c_.is_fused(id_)) {
      for (std::size_t s = 0; s < slices; ++s) at[s] = s * segment;
      out.base = table_.base(scratch(segment * slices));
    } else {
      at.assign(slices, uz(memory_.take(segment)));
    }
    out.part = table_.part(cut.bytes, at, cut.owner);
    return out;
  }

  StepValue stored_stack(const SliceOf& cut, NodeId stack, NodeId what) {
    const StepLayouts& layouts = c_.layouts_;
    Stepped where = stepped(cut, body_.spec(what).bytes());
    NodeId home = stack;
    if (const auto at = layouts.slice_by_slice.find(stack); at != layouts.slice_by_slice.end())
      where = at->second;
    if (const auto at = layouts.written_as.find(stack); at != layouts.written_as.end()) {
      home = at->second;
      where =
          *stepped(cut, body_.spec(what), *inverse(view_of(home), c_.node(stack).spec, c_.node(home).spec));
    }
    c_.give_home(home);
    return {.part = part(cut, where),
            .base = table_.base(c_.value(home).place),
            .stride = static_cast<std::int64_t>(where.stride),
            .scratch = memory_.take(cut.bytes)};
  }

  OpView view_of(NodeId id) const { return c_.node(id).op->view(NodeCall(c_.graph_.nodes(), c_.node(id))); }

  // May a step make this carry over what it reads of it? Whether it does is known once the body is compiled, and if not, it is compiled
  // again: not where loops in loops in loops would each be compiled twice. Of small carries, and in few steps, there is nothing to gain.
  bool may_stay(const StepCarry& carry, NodeId in) const {
    constexpr std::int64_t kLeastBytes = 1024;
    constexpr int kLeastSteps = 3;
    if (carry.stack >= 0 || carry.part.bytes < kLeastBytes || table_.steps < kLeastSteps) return false;
    return !written_over(body_.nodes, in, body_.outs[uz(in)]).empty() && !has_loops_in_loops(body_);
  }
  static bool has_loops_in_loops(const GraphBody& body) {
    return std::ranges::any_of(body.nodes, [](const GraphNode& n) {
      return is_scan(n) && std::ranges::any_of(body_of(n).nodes, is_scan);
    });
  }

  // Does each stretch of each slice leave this carry in memory that is not the worker's?
  bool always_ends_elsewhere(const StepCarry& c) const {
    const auto owners = std::span(table_.owners).subspan(uz(c.part.at), uz(table_.slices));
    return c.final_value >= 0 && scan_->every == 0 && (c.partial || std::ranges::count(owners, 0) == 0);
  }

  // The body, with those carries written in place that need no copy for it.
  Program body_with_carries_in_place() {
    if (!c_.is_fused(id_) && c_.options_.reuse)  // a kernel of the whole scan has its own places
      for (std::size_t k = 0; k < carries_.size(); ++k)
        if (may_stay(table_.carries[k], carries_[k])) in_place_.push_back({.output = k, .input = k});
    for (;;) {
      Program body = compiled_body();
      const auto is_copied = [&](const Donation& d) {
        return std::ranges::any_of(body.code, [&](const Instruction& ins) {
          return !ins.op && ins.out == Place{Place::Kind::external, d.input};
        });
      };
      if (std::erase_if(in_place_, is_copied) == 0) return body;
    }
  }

  Program compiled_body() const {
    PlanOptions options = c_.options_;
    options.donate = in_place_;
    if (!sliced_) return compile(body_.nodes, ins_, outs_, options, true);
    const auto made = [&](std::vector<NodeId> ids) {
      for (NodeId& i : ids) i = sliced_->made[uz(i)];
      return ids;
    };
    // The kernel of the whole scan makes its products itself.
    if (c_.is_fused(id_)) options.precision = Precision::f32;
    return compile(sliced_->graph->nodes(), made(ins_), made(outs_), options, true);
  }

  void add_workers() {
    scan_->workers.resize(uz(std::min(table_.slices, c_.options_.workers)));
    scan_->workers[0].body = body_with_carries_in_place();
    for (const Donation& d : in_place_) table_.carries[d.input].in_place = true;
    for (StepCarry& c : table_.carries) {
      if (!c.in_place || !always_ends_elsewhere(c)) c.even = memory_.take(uz(c.part.bytes));
      if (!c.in_place) c.odd = memory_.take(uz(c.part.bytes));
    }
    for (ScanStep::Worker& w : scan_->workers) {
      if (&w != &scan_->workers[0]) w.body = compiled_body();
      w.bases.resize(table_.bases.size());
      w.externals.resize(ins_.size() + outs_.size());
      w.carry_in.resize(table_.carries.size());
    }
    scan_->body_arena = uz(memory_.take(scan_->workers[0].body.arena_bytes));
    const std::size_t bytes = memory_.bytes;
    table_.bases[0] = {scratch(c_.is_fused(id_) ? 0 : bytes * scan_->workers.size()), bytes};
  }

  Compiler& c_;
  NodeId id_;
  const GraphNode& node_;
  const ScanAttrs& attrs_;
  const GraphBody& body_;
  ScanResults results_;
  const SlicedBody* sliced_ = nullptr;
  std::unique_ptr<ScanStep> scan_;
  StepTable& table_ = scan_->table;
  Compiler::ScanInfo info_;
  WorkerMemory memory_;
  std::vector<NodeId> finals_;      // by carry; -1: not asked for
  std::vector<char> live_;          // of the body's nodes
  std::vector<NodeId> carries_;     // those that matter
  std::vector<NodeId> unchanged_;   // of those that do, the ones that are no more than a constant
  std::vector<NodeId> ins_, outs_;  // of the compiled body
  std::vector<Donation> in_place_;  // of it: carries that are written over what is read of them
};

void Compiler::issue_scan(NodeId id) { ScanCompiler(*this, id).issue(); }

}  // namespace nestgrad
