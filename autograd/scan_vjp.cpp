// The derivative of a scan is a scan in the other direction.
//
//   carries: the cotangent of each carry that counts (see carries_that_count), and an accumulator per needed const
//            (starting at the const's cotangent so far, so that the order of additions is that of the unrolled loop)
//   xs:      the forward scan's xs, its carries, the body values that the rules mention, cotangents of stacks
//   body:    the forward body inlined, pulled back, and every forward value in the result replaced by
//            what the stack of the forward scan holds
//
// It reads stacks of the forward scan instead of recomputing: the graph is the same whatever the plan later
// decides to store, so every checkpoint schedule gives the same bits, and a second derivative reaches the
// forward values once.
#include "autograd/reverse.h"
#include "autograd/scan.h"
#include "engine/core/index.h"
#include "engine/plan/dependence.h"
#include "engine/plan/liveness.h"
#include "ops/ops.h"

namespace nestgrad {

namespace {

// Body nodes whose value is read from a stack: those that change over time and cost work to compute.
// Loop-invariant nodes and mere rearrangements are recomputed from what they rearrange.
std::vector<char> stacked_nodes(const GraphBody& body) {
  std::vector<char> varies(body.nodes.size(), 0), stacked(body.nodes.size(), 0);
  std::vector<Spec> in;
  for (std::size_t id = 0; id < body.nodes.size(); ++id) {
    const GraphNode& n = body.nodes[id];
    if (n.op->kind == OpKind::input) {
      varies[id] = static_cast<int>(id) < body.carries + body.xs;
      continue;
    }
    in.clear();
    for (NodeId i : n.inputs) {
      varies[id] = varies[id] || varies[uz(i)];
      in.push_back(body.spec(i));
    }
    if (!varies[id] || is_scan(n)) continue;
    stacked[id] =
        n.op->kind != OpKind::value || !n.op->cost || n.op->cost({*n.op, in, n.attrs, n.spec}).flops > 0;
  }
  return stacked;
}

Tensor zeros_of(const Spec& spec) { return zeros(spec.dtype, spec.shape); }

// The step of the scan that is the derivative of another one, while it is made. `scan` is a node of
// `outside`, marked[i]: a derivative with respect to its input i is asked for.
class ReverseStep {
 public:
  ReverseStep(Graph& outside, NodeId scan, std::vector<char> marked)
      : outside_(outside),
        node_(outside.tensor(scan)),
        operands_(outside.node(scan).inputs),
        body_(outside.node(scan).attrs.as<ScanAttrs>().body),
        marked_(std::move(marked)),
        graph_(GraphOptions{.parent = &outside}) {}

  // What has a cotangent: `finals`, carries after the last step, and `stacks`, by node of the body.
  void make(const std::map<std::int64_t, Tensor>& finals, const std::map<std::int64_t, Tensor>& stacks) {
    {
      const GraphScope scope(graph_);
      const Tensors made = forward_again();
      ask(made, carries_that_count(finals, stacks), stacks);
      pulled_ = pull_back(seeds_, wrt_, starts_);
      read_stacks(made);
      // A carry whose cotangent is structurally absent gets zeros: the body must stay square.
      for (std::size_t k = 0; k < carries_.size(); ++k) {
        if (!pulled_[k].defined()) pulled_[k] = zeros_of(body_->spec(carries_[k]));
        closing_.outs.push_back(graph_.lift(pulled_[k]));
      }
    }
    close();
  }

  const BodyPtr& body() const { return closed_.body; }
  // Inputs of the scan, in the order of the new step's carries: cotangents of carries, then sums of those of
  // consts.
  const std::vector<NodeId>& carries() const { return carries_; }
  const std::vector<NodeId>& consts() const { return consts_; }
  // Inputs of the scan, with the node of the new step that is stacked as their cotangent.
  const std::vector<std::pair<NodeId, NodeId>>& xs() const { return xs_; }
  // What the new scan reads behind its carries.
  Tensors operands() const {
    Tensors out;
    for (std::size_t i : closed_.live_xs) out.push_back(sources_[i].outer());
    for (std::size_t i : closed_.live_consts) out.push_back(graph_.captures()[i].outer);
    return out;
  }

 private:
  struct Source {
    NodeId input;                   // of the new step
    std::function<Tensor()> outer;  // what it reads, made only if it turns out to be needed
  };

  Tensor add_x(const Spec& spec, std::function<Tensor()> outer) {
    const Tensor t = graph_.input(spec);
    sources_.push_back({t.id(), std::move(outer)});
    return t;
  }
  Tensor add_stack(NodeId of) {
    return add_x(body_->spec(of), [node = node_, of] { return scan_stack(node, of); });
  }

  // The forward step, on inputs of its own: the tensor of every node of its body.
  Tensors forward_again() {
    const int nc = body_->carries, nx = body_->xs;
    for (int i = 0; i < nc; ++i) inputs_.push_back(add_stack(i));
    for (int i = nc; i < nc + nx; ++i)
      inputs_.push_back(add_x(body_->spec(i), [this, i] { return outside_.tensor(operands_[uz(i)]); }));
    for (int i = nc + nx; i < body_->inputs(); ++i)
      inputs_.push_back(graph_.tensor(graph_.lift(outside_.tensor(operands_[uz(i)]))));
    return inline_body(*body_, inputs_);
  }

  // By carry: does it depend on what a derivative is asked for, and what has a cotangent on it? Any other has a
  // cotangent of zeros, which must not be pulled back: where a slope is infinite it would give NaN.
  std::vector<char> carries_that_count(const std::map<std::int64_t, Tensor>& finals,
                                       const std::map<std::int64_t, Tensor>& stacks) const {
    std::vector<char> read(uz(body_->carries), 0);
    for (const auto& [carry, ct] : finals) read[uz(carry)] = 1;
    std::vector<NodeId> shown;
    for (const auto& [node, ct] : stacks) shown.push_back(static_cast<NodeId>(node));
    std::vector<char> out = live_in_body(*body_, std::move(read), std::move(shown)).carries;
    const std::vector<char> active = active_in_body(*body_, marked_);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = out[i] && active[i];
    return out;
  }

  // What is pulled back, and for what: `carries_`, `needed_xs_` and `consts_` in this order.
  void ask(const Tensors& made, const std::vector<char>& counts,
           const std::map<std::int64_t, Tensor>& stacks) {
    const int nc = body_->carries, nx = body_->xs;
    const auto want = [&](int i, std::vector<NodeId>& list, Tensor start) {
      list.push_back(i);
      wrt_.push_back(inputs_[uz(i)]);
      starts_.push_back(start);
    };
    for (int i = 0; i < nc; ++i) {
      if (!counts[uz(i)]) continue;
      const Tensor ct = graph_.input(body_->spec(i));
      closing_.carries.push_back(ct.id());
      seeds_.push_back({made[uz(body_->outs[uz(i)])], ct});
      want(i, carries_, {});
    }
    for (const auto& [j, ct] : stacks)
      seeds_.push_back({made[uz(j)], add_x(body_->spec(static_cast<NodeId>(j)), [t = ct] { return t; })});
    for (int i = nc; i < nc + nx; ++i) {
      if (!marked_[uz(i)]) continue;
      want(i, needed_xs_, {});
    }
    for (int i = nc + nx; i < body_->inputs(); ++i) {
      if (!marked_[uz(i)]) continue;
      const Tensor sum = graph_.input(body_->spec(i));
      closing_.carries.push_back(sum.id());
      want(i, consts_, sum);
    }
  }

  // Forward values are read from stacks instead of being computed again.
  void read_stacks(const Tensors& made) {
    const std::vector<char> stacked = stacked_nodes(*body_);
    closing_.replace.assign(uz(graph_.size()), -1);
    for (std::size_t j = 0; j < made.size(); ++j)
      if (NodeId& instead = closing_.replace[uz(made[j].id())]; stacked[j] && instead < 0)
        instead = add_stack(static_cast<NodeId>(j)).id();
  }

  void close() {
    const std::size_t first_x = carries_.size(), first_const = first_x + needed_xs_.size();
    for (std::size_t k = 0; k < consts_.size(); ++k)
      closing_.outs.push_back(graph_.lift(pulled_[first_const + k]));
    for (std::size_t k = 0; k < needed_xs_.size(); ++k) {
      if (!pulled_[first_x + k].defined()) continue;
      closing_.keep.push_back(graph_.lift(pulled_[first_x + k]));
      xs_.emplace_back(needed_xs_[k], -1);
    }
    for (const Source& x : sources_) closing_.xs.push_back(x.input);
    for (const Capture& c : graph_.captures()) closing_.consts.push_back(c.id);
    closed_ = close_body(graph_, closing_);
    for (std::size_t k = 0; k < xs_.size(); ++k) xs_[k].second = closed_.keep[k];
  }

  Graph& outside_;
  const Tensor node_;
  const std::vector<NodeId> operands_;  // of the scan
  const BodyPtr body_;
  const std::vector<char> marked_;
  Graph graph_;
  Closing closing_;
  Closed closed_;
  std::vector<Source> sources_;
  Tensors inputs_, wrt_, starts_, pulled_;
  std::vector<GradSeed> seeds_;
  std::vector<NodeId> carries_, needed_xs_, consts_;
  std::vector<std::pair<NodeId, NodeId>> xs_;
};

}  // namespace

void Reverse::through_scan(NodeId id) {
  const GraphNode& scan = graph_.node(id);  // stays where it is while the graph grows
  const ScanAttrs& loop = scan.attrs.as<ScanAttrs>();
  const ScanCotangents& arrived = scans_[id];
  std::vector<char> marked;
  for (NodeId in : scan.inputs) marked.push_back(depends(in));
  ReverseStep step(graph_, id, std::move(marked));
  step.make(arrived.finals, arrived.stacks);

  Tensors inputs;
  for (NodeId i : step.carries()) {
    const auto ct = arrived.finals.find(i);
    inputs.push_back(ct != arrived.finals.end() ? ct->second : zeros_of(loop.body->spec(i)));
  }
  for (NodeId i : step.consts()) {
    add_ranges(scan.inputs[uz(i)]);
    const Tensor so_far = cotangents_[at(scan.inputs[uz(i)])];
    inputs.push_back(so_far.defined() ? so_far : zeros_of(loop.body->spec(i)));
  }
  for (const Tensor& t : step.operands()) inputs.push_back(t);
  const Tensor back = scan_node(step.body(), inputs, loop.steps, !loop.reverse, loop.every, scan.loc);

  std::int64_t carry = std::ssize(step.carries());
  for (NodeId i : step.consts())  // assigned, not added: it was the starting value
    cotangents_[at(scan.inputs[uz(i)])] = scan_final(back, carry++);
  carry = 0;
  for (NodeId i : step.carries()) add(scan.inputs[uz(i)], scan_final(back, carry++));
  for (const auto& [i, stacked] : step.xs()) add(scan.inputs[uz(i)], scan_stack(back, stacked));
}

}  // namespace nestgrad
