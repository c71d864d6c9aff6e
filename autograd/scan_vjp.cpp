// The derivative of a scan is a scan in the other direction.
//
//   carries: the cotangent of each active carry, and an accumulator per needed const (starting at the const's
//            cotangent so far, so that the order of additions is that of the unrolled loop)
//   xs:      the forward scan's xs, its carries, the body values that the rules mention, cotangents of stacks
//   body:    the forward body inlined, pulled back, and every forward value in the result replaced by
//            what the stack of the forward scan holds
//
// It reads stacks of the forward scan instead of recomputing: the graph is the same whatever the plan later
// decides to store, so every checkpoint schedule gives the same bits, and a second derivative reaches the
// forward values once.
#include "autograd/reverse.h"
#include "autograd/scan.h"
#include "engine/dependence.h"
#include "engine/index.h"
#include "ops/ops.h"

namespace nestgrad {

namespace {

// Body nodes whose value is read from a stack: those that change over time and cost work to compute.
// Loop-invariant nodes and mere rearrangements are recomputed from what they rearrange.
std::vector<char> stacked_nodes(const Body& body) {
  std::vector<char> varies(body.nodes.size(), 0), stacked(body.nodes.size(), 0);
  std::vector<Spec> in;
  for (std::size_t id = 0; id < body.nodes.size(); ++id) {
    const Node& n = body.nodes[id];
    if (n.op->kind == OpKind::input) {
      varies[id] = static_cast<int>(id) < body.carries + body.xs;
      continue;
    }
    in.clear();
    for (NodeId i : n.inputs) {
      varies[id] = varies[id] || varies[uz(i)];
      in.push_back(body.spec(i));
    }
    if (!varies[id] || n.op->kind == OpKind::scan) continue;
    stacked[id] =
        n.op->kind != OpKind::value || !n.op->cost || n.op->cost({*n.op, in, n.attrs, n.spec}).flops > 0;
  }
  return stacked;
}

Tensor zeros_of(const Spec& spec) { return zeros(spec.dtype, spec.shape); }

}  // namespace

void Reverse::through_scan(NodeId id) {
  const Node scan = graph_.node(id);  // a copy: the graph grows below
  const ScanAttrs& loop = scan.attrs.as<ScanAttrs>();
  const BodyPtr forward = loop.body;
  const Tensor node = graph_.tensor(id);
  ScanCotangents& arrived = scans_[id];
  const int nc = forward->carries, nx = forward->xs;

  std::vector<char> marked;
  for (NodeId in : scan.inputs) marked.push_back(depends(in));
  const std::vector<char> active = active_in_body(*forward, marked);

  Graph graph(GraphOptions{.parent = &graph_});
  struct Source {
    NodeId input;                   // of the reverse body
    std::function<Tensor()> outer;  // what it reads, made only if it turns out to be needed
  };
  Closing closing;
  std::vector<Source> xs;
  Tensors init;
  std::vector<Seed> seeds;
  Tensors wrt, starts;
  std::vector<std::int64_t> active_carries, needed_xs, needed_consts;
  std::vector<Tensor> pulled;
  {
    const GraphScope scope(graph);
    const auto add_x = [&](const Spec& spec, std::function<Tensor()> outer) {
      const Tensor t = graph.input(spec);
      xs.push_back({t.id(), std::move(outer)});
      return t;
    };
    Tensors inputs;
    for (int i = 0; i < nc; ++i)
      inputs.push_back(add_x(forward->spec(i), [=] { return scan_stack(node, i); }));
    for (int i = nc; i < nc + nx; ++i)
      inputs.push_back(
          add_x(forward->spec(i), [this, outer = scan.inputs[uz(i)]] { return graph_.tensor(outer); }));
    for (int i = nc + nx; i < forward->inputs(); ++i)
      inputs.push_back(graph.tensor(graph.lift(graph_.tensor(scan.inputs[uz(i)]))));
    const std::vector<Tensor> made = inline_body(*forward, inputs);

    for (int i = 0; i < nc; ++i) {
      if (!active[uz(i)]) continue;
      active_carries.push_back(i);
      const Tensor ct = graph.input(forward->spec(i));
      closing.carries.push_back(ct.id());
      seeds.push_back({made[uz(forward->outs[uz(i)])], ct});
      wrt.push_back(inputs[uz(i)]);
      starts.emplace_back();
    }
    for (auto& [j, ct] : arrived.stacks)
      seeds.push_back({made[uz(j)], add_x(forward->spec(static_cast<NodeId>(j)), [t = ct] { return t; })});
    for (int i = nc; i < nc + nx; ++i) {
      if (!marked[uz(i)]) continue;
      needed_xs.push_back(i);
      wrt.push_back(inputs[uz(i)]);
      starts.emplace_back();
    }
    for (int i = nc + nx; i < forward->inputs(); ++i) {
      if (!marked[uz(i)]) continue;
      needed_consts.push_back(i);
      const Tensor acc = graph.input(forward->spec(i));
      closing.carries.push_back(acc.id());
      wrt.push_back(inputs[uz(i)]);
      starts.push_back(acc);
    }
    pulled = pull_back(seeds, wrt, starts);

    const std::vector<char> stacked = stacked_nodes(*forward);
    closing.replace.assign(uz(graph.size()), -1);
    for (std::size_t j = 0; j < made.size(); ++j) {
      if (!stacked[j] || closing.replace[uz(made[j].id())] >= 0) continue;
      closing.replace[uz(made[j].id())] = add_x(forward->spec(static_cast<NodeId>(j)), [=] {
                                            return scan_stack(node, static_cast<std::int64_t>(j));
                                          }).id();
    }
    // A carry or x whose cotangent is structurally absent gets zeros: the body must stay square.
    for (std::size_t k = 0; k < active_carries.size(); ++k) {
      if (!pulled[k].defined()) pulled[k] = zeros_of(forward->spec(static_cast<NodeId>(active_carries[k])));
      closing.outs.push_back(graph.lift(pulled[k]));
    }
  }
  const std::size_t first_x = active_carries.size(), first_const = first_x + needed_xs.size();
  for (std::size_t k = 0; k < needed_consts.size(); ++k)
    closing.outs.push_back(graph.lift(pulled[first_const + k]));
  std::vector<std::size_t> kept;
  for (std::size_t k = 0; k < needed_xs.size(); ++k) {
    if (!pulled[first_x + k].defined()) continue;
    closing.keep.push_back(graph.lift(pulled[first_x + k]));
    kept.push_back(k);
  }
  for (const Source& x : xs) closing.xs.push_back(x.input);
  for (const Capture& c : graph.captures()) closing.consts.push_back(c.id);
  const Closed closed = close_body(graph, closing);

  for (std::int64_t i : active_carries) {
    const auto ct = arrived.finals.find(i);
    init.push_back(ct != arrived.finals.end() ? ct->second : zeros_of(forward->spec(static_cast<NodeId>(i))));
  }
  for (std::int64_t i : needed_consts) {
    const Tensor so_far = cotangents_[at(scan.inputs[uz(i)])];
    init.push_back(so_far.defined() ? so_far : zeros_of(forward->spec(static_cast<NodeId>(i))));
  }
  Tensors inputs = init;
  for (std::size_t i : closed.live_xs) inputs.push_back(xs[i].outer());
  for (std::size_t i : closed.live_consts) inputs.push_back(graph.captures()[i].outer);
  const Tensor back = scan_node(closed.body, inputs, loop.steps, !loop.reverse, loop.every, scan.loc);

  for (std::size_t k = 0; k < needed_consts.size(); ++k)  // assigned, not added: it was the starting value
    cotangents_[at(scan.inputs[uz(needed_consts[k])])] =
        scan_final(back, static_cast<std::int64_t>(active_carries.size() + k));
  for (std::size_t k = 0; k < active_carries.size(); ++k)
    add(scan.inputs[uz(active_carries[k])], scan_final(back, static_cast<std::int64_t>(k)));
  for (std::size_t k = 0; k < kept.size(); ++k)
    add(scan.inputs[uz(needed_xs[kept[k]])], scan_stack(back, closed.keep[k]));
}

}  // namespace nestgrad
