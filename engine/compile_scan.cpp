// Scans in a plan: what is cut into slices, what is stored
// and what recomputed, and what one step reads and writes.
#include <algorithm>

#include "engine/compiler.h"
#include "engine/liveness.h"

namespace nestgrad {

// ---- slices ----

void Compiler::slice_scans() {
  if (!options_.slice) return;
  for (NodeId id = 0; id < graph_.size(); ++id) {
    if (!live_[uz(id)] || node(id).op->kind != OpKind::scan) continue;
    std::vector<NodeId> stacked;
    for (NodeId p : results_of(id).stacks) stacked.push_back(shown_by(node(p)));
    auto sliced = slice_body(body_of(node(id)), stacked);
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
      if (!live_[uz(id)] || node(id).op->kind != OpKind::scan) continue;
      for (NodeId in : node(id).inputs) {
        if (node(in).op->kind != OpKind::stack) continue;
        const NodeId producer = node(in).inputs[0];
        if (extents(id) == extents(producer) || !is_pulled(in, [](const Reader&) { return true; })) continue;
        slicings_.erase(id), slicings_.erase(producer);
        again = true;
      }
    }
  }
}

void Compiler::fuse_scans() {
  for (Instruction& ins : program_.code)
    if (ins.scan && is_fused(ins.node)) {
      ins.scan->fused = backend()->fuse_scan(*ins.scan, program_);
      if (!ins.scan->fused) throw CannotFuse();
    }
}

SliceOf Compiler::part_in(NodeId scan, NodeId body_node) const {
  const auto cut = slicings_.find(scan);
  if (cut != slicings_.end()) return cut->second.parts[uz(body_node)];
  return {body_of(node(scan)).spec(body_node).bytes(), {0}, {1}, false};
}

// ---- what is recomputed ----

Compiler::Results Compiler::results_of(NodeId scan) const {
  Results out;
  for (const Reader& r : readers_[uz(scan)]) {
    if (r.id < 0) continue;
    if (node(r.id).op->kind == OpKind::final) out.finals.push_back(r.id);
    if (node(r.id).op->kind == OpKind::stack) out.stacks.push_back(r.id);
  }
  return out;
}

int Compiler::every_of(const Node& scan) const {
  const ScanAttrs& attrs = scan.attrs.as<ScanAttrs>();
  return std::min(options_.checkpoint_every.value_or(attrs.every), static_cast<int>(attrs.steps));
}

template <class Suits>
bool Compiler::is_pulled(NodeId stack, Suits suits) const {
  return std::ranges::all_of(readers_[uz(stack)],
                             [&](const Reader& r) { return reads_step_by_step(graph_, r) && suits(r); });
}

bool Compiler::is_lazy(NodeId stack, int every) const {
  // A slice has recomputed for it what the slice of the same number makes: it must be all that it reads.
  if (every == 0) return false;
  const SliceOf made = part_in(node(stack).inputs[0], shown_by(node(stack)));
  return is_pulled(stack, [&](const Reader& r) {
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
        body_(body_of(node_)),
        results_(compiler.results_of(id)),
        scan_(std::make_unique<ScanStep>()),
        info_{.instruction = compiler.program_.code.size()} {
    const auto cut = compiler.slicings_.find(id);
    if (cut != compiler.slicings_.end()) sliced_ = &cut->second;
  }

  void issue() {
    scan_->steps = static_cast<int>(node_.attrs.as<ScanAttrs>().steps);
    scan_->reverse = node_.attrs.as<ScanAttrs>().reverse;
    scan_->every = c_.every_of(node_);
    if (sliced_) scan_->slices = sliced_->slices();
    if (scan_->every) scan_->copies = (scan_->steps + scan_->every - 1) / scan_->every;
    else if (c_.is_fused(id_) &&
             std::ranges::any_of(node_.inputs, [&](NodeId in) { return c_.lazy_stacks_.contains(in); }))
      scan_->copies = 2;
    find_live();
    add_carries();
    add_inputs();
    add_stacks();
    add_workers();

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
    std::size_t take(std::size_t size) {
      const std::size_t at = bytes;
      bytes += (size + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
      return at;
    }
  };

  SliceOf part_of(NodeId body_node) const { return c_.part_in(id_, body_node); }
  std::size_t scratch(std::size_t bytes) {
    info_.own_buffers.push_back(c_.new_buffer(bytes));
    return uz(info_.own_buffers.back());
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
      if (carried[i]) carries_.push_back(static_cast<NodeId>(i));
  }

  void add_carries() {
    const std::size_t slices = uz(scan_->slices), copies = uz(scan_->copies);
    for (NodeId in : carries_) {
      ins_.push_back(in), outs_.push_back(body_.outs[uz(in)]);
      ScanStep::Carry c{
          .init = c_.use(node_.inputs[uz(in)]), .part = part_of(in), .dtype = body_.spec(in).dtype};
      c.ping = memory_.take(c.part.bytes);
      c.pong = memory_.take(c.part.bytes);
      if (copies) c.checkpoints = scratch(c.part.bytes * slices * copies);
      if (const NodeId last = finals_[uz(in)]; last >= 0) {
        c_.give_home(last);
        c.final_value = c_.value(last).place;
        if (c.part.partial) c.terms = scratch(c.part.bytes * slices);
      }
      scan_->carries.push_back(std::move(c));
    }
  }

  void add_inputs() {
    const int first_const = body_.carries + body_.xs;
    for (NodeId i = body_.carries; i < body_.inputs(); ++i) {
      if (!live_[uz(i)]) continue;
      ins_.push_back(i);
      const NodeId source = node_.inputs[uz(i)];
      if (i < first_const) scan_->xs.push_back(per_step(i, source));
      else scan_->consts.push_back({c_.use(source), part_of(i)});
    }
  }

  ScanStep::PerStep per_step(NodeId in, NodeId source) {
    ScanStep::PerStep x{.where = stepped(part_of(in), body_.spec(in).bytes())};
    if (const auto lazy = c_.lazy_stacks_.find(source); lazy != c_.lazy_stacks_.end()) {
      Compiler::ScanInfo& producer = c_.scans_[uz(lazy->second.first)];
      if (producer.pulled_by.empty() || producer.pulled_by.back() != id_) producer.pulled_by.push_back(id_);
      x.producer = static_cast<int>(producer.instruction);
      x.stack = lazy->second.second;
      return x;
    }
    x.source = c_.use(source);
    const StepLayouts& layouts = c_.layouts_;
    if (const auto at = layouts.slice_by_slice.find(source); at != layouts.slice_by_slice.end())
      x.where = at->second;
    if (layouts.read_in_place.contains(source))
      x.where = *stepped(part_of(in), body_.spec(in), view_of(source));
    return x;
  }

  void add_stacks() {
    for (NodeId p : results_.stacks) {
      const NodeId what = shown_by(c_.node(p));
      ScanStep::Stack s{.where = stepped(part_of(what), body_.spec(what).bytes()), .part = part_of(what)};
      const auto carry = std::ranges::find(carries_, what);
      if (carry != carries_.end() && !s.part.partial) {
        int& stack = scan_->carries[uz(carry - carries_.begin())].stack;
        s.of_carry = stack < 0;
        if (s.of_carry) stack = static_cast<int>(scan_->stacks.size());
      }
      if (!s.of_carry) outs_.push_back(what);
      s.lazy = c_.is_lazy(p, scan_->every);
      if (s.lazy) {
        c_.lazy_stacks_.emplace(p, std::pair{id_, scan_->stacks.size()});
        const std::size_t segment = s.part.bytes * uz(scan_->every);
        s.buffer = c_.is_fused(id_) ? scratch(segment * uz(scan_->slices)) : memory_.take(segment);
      } else {
        store(s, p, what);
      }
      scan_->stacks.push_back(std::move(s));
    }
  }

  void store(ScanStep::Stack& s, NodeId stack, NodeId what) {
    const StepLayouts& layouts = c_.layouts_;
    NodeId home = stack;
    if (const auto at = layouts.slice_by_slice.find(stack); at != layouts.slice_by_slice.end())
      s.where = at->second;
    if (const auto at = layouts.written_as.find(stack); at != layouts.written_as.end()) {
      home = at->second;
      s.where = *stepped(s.part, body_.spec(what),
                         *inverse(view_of(home), c_.node(stack).spec, c_.node(home).spec));
    }
    c_.give_home(home);
    s.stored = c_.value(home).place;
    s.buffer = memory_.take(s.part.bytes);
  }

  View view_of(NodeId id) const { return c_.node(id).op->view(NodeCall(c_.graph_.nodes(), c_.node(id))); }

  Program compiled_body() const {
    if (!sliced_) return compile(body_.nodes, ins_, outs_, c_.options_, true);
    const auto made = [&](std::vector<NodeId> ids) {
      for (NodeId& i : ids) i = sliced_->made[uz(i)];
      return ids;
    };
    return compile(sliced_->graph->nodes(), made(ins_), made(outs_), c_.options_, true);
  }

  void add_workers() {
    scan_->workers.resize(uz(std::min(scan_->slices, c_.options_.workers)));
    for (ScanStep::Worker& w : scan_->workers) {
      w.body = compiled_body();
      w.externals.resize(ins_.size() + outs_.size());
      w.carry_in.resize(scan_->carries.size());
    }
    scan_->body_arena = memory_.take(scan_->workers[0].body.arena_bytes);
    scan_->memory_bytes = memory_.bytes;
    scan_->memory = scratch(c_.is_fused(id_) ? 0 : memory_.bytes * scan_->workers.size());
  }

  Compiler& c_;
  NodeId id_;
  const Node& node_;
  const Body& body_;
  Compiler::Results results_;
  const SlicedBody* sliced_ = nullptr;
  std::unique_ptr<ScanStep> scan_;
  Compiler::ScanInfo info_;
  WorkerMemory memory_;
  std::vector<NodeId> finals_;      // by carry; -1: not asked for
  std::vector<char> live_;          // of the body's nodes
  std::vector<NodeId> carries_;     // those that matter
  std::vector<NodeId> ins_, outs_;  // of the compiled body
};

void Compiler::issue_scan(NodeId id) { ScanCompiler(*this, id).issue(); }

}  // namespace nestgrad
