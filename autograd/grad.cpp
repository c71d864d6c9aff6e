#include "autograd/grad.h"

#include <fmt/format.h>

#include <algorithm>

#include "autograd/reverse.h"
#include "ops/ops.h"

namespace nestgrad {

// ---- what depends on what ----

namespace {

bool passes(const Node& n, std::size_t input, const Node& source) {
  return is_float(n.spec.dtype) && is_float(source.spec.dtype) && n.op->vjp && !(n.op->cut && !n.op->cut(static_cast<int>(input)).empty());
}

std::vector<char> marked_inputs(const Node& scan, const std::vector<char>& marked) {
  std::vector<char> in;
  for (NodeId id : scan.inputs) in.push_back(marked[static_cast<std::size_t>(id)]);
  return in;
}

}  // namespace

std::vector<char> dependents(const std::deque<Node>& nodes, std::vector<char> marked) {
  std::unordered_map<NodeId, std::vector<char>> bodies;
  for (std::size_t id = 0; id < marked.size(); ++id) {
    const Node& n = nodes[id];
    if (marked[id] || n.inputs.empty()) continue;
    switch (n.op->kind) {
      case OpKind::input:
      case OpKind::constant: break;
      case OpKind::value:
        for (std::size_t i = 0; i < n.inputs.size() && !marked[id]; ++i)
          marked[id] = marked[static_cast<std::size_t>(n.inputs[i])] && passes(n, i, nodes[static_cast<std::size_t>(n.inputs[i])]);
        break;
      case OpKind::scan: {
        const std::vector<char> in = marked_inputs(n, marked);
        marked[id] = std::ranges::find(in, 1) != in.end();
        if (marked[id]) bodies.emplace(static_cast<NodeId>(id), active_in_body(*n.attrs.body, in));
        break;
      }
      case OpKind::final:
      case OpKind::stack:
        if (const auto body = bodies.find(n.inputs[0]); body != bodies.end())
          marked[id] = body->second[static_cast<std::size_t>(n.attrs.ints[0])];
        break;
    }
  }
  return marked;
}

std::vector<char> active_in_body(const Body& body, const std::vector<char>& marked_in) {
  std::vector<char> inputs = marked_in;
  for (;;) {
    std::vector<char> marked(body.nodes.size(), 0);
    std::ranges::copy(inputs, marked.begin());
    marked = dependents(body.nodes, std::move(marked));
    bool grew = false;
    for (std::size_t i = 0; i < static_cast<std::size_t>(body.carries); ++i)
      if (marked[static_cast<std::size_t>(body.outs[i])] && !inputs[i]) inputs[i] = grew = true;
    if (!grew) return marked;
  }
}

// ---- the walk ----

Reverse::Reverse(Graph& graph, std::span<const Seed> seeds, std::span<const NodeId> wrt, std::span<const Tensor> initial)
    : graph_(graph) {
  for (const Seed& s : seeds) end_ = std::max(end_, s.value.id() + 1);
  for (NodeId id : wrt) end_ = std::max(end_, id + 1);
  std::vector<char> marked(static_cast<std::size_t>(end_), 0);
  for (NodeId id : wrt) marked[static_cast<std::size_t>(id)] = 1;
  depends_ = dependents(graph.nodes(), std::move(marked));
  cotangents_.resize(static_cast<std::size_t>(end_));
  for (std::size_t i = 0; i < initial.size(); ++i)
    if (initial[i].defined()) cotangents_[static_cast<std::size_t>(wrt[i])] = initial[i];
  for (const Seed& s : seeds) add(s.value.id(), s.cotangent);
}

Tensor Reverse::cotangent(NodeId id) const { return cotangents_[static_cast<std::size_t>(id)]; }

void Reverse::add(NodeId id, Tensor ct) {
  if (!depends_[static_cast<std::size_t>(id)]) return;
  ct = sum_to(ct, graph_.node(id).spec.shape);  // undoes broadcasting, here and nowhere else
  Tensor& sum = cotangents_[static_cast<std::size_t>(id)];
  sum = sum.defined() ? sum + ct : ct;
}

void Reverse::run() {
  EmitGuard guard;
  for (NodeId id = end_ - 1; id >= 0; --id) {
    if (!depends_[static_cast<std::size_t>(id)]) continue;
    const Node& n = graph_.node(id);
    const bool reached = n.op->kind == OpKind::scan ? scans_.contains(id) : cotangents_[static_cast<std::size_t>(id)].defined();
    if (!reached) continue;
    EmitState& state = emit_state();
    state.level = n.level + 1;
    state.vjp_of = id;
    state.loc = n.loc;
    state.scope = n.scope;
    const Tensor ct = cotangents_[static_cast<std::size_t>(id)];
    switch (n.op->kind) {
      case OpKind::input:
      case OpKind::constant: break;
      case OpKind::final: {
        Tensor& sum = scans_[n.inputs[0]].finals[n.attrs.ints[0]];
        sum = sum.defined() ? sum + ct : ct;
        break;
      }
      case OpKind::stack: {
        Tensor& sum = scans_[n.inputs[0]].stacks[n.attrs.ints[0]];
        sum = sum.defined() ? sum + ct : ct;
        break;
      }
      case OpKind::scan: through_scan(id); break;
      case OpKind::value: through_op(id); break;
    }
  }
}

void Reverse::through_op(NodeId id) {
  const Node& n = graph_.node(id);
  if (!n.op->vjp) return;
  std::vector<Tensor> in;
  for (NodeId i : n.inputs) in.push_back(graph_.tensor(i));
  const Tensor ct = cotangents_[static_cast<std::size_t>(id)];
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (!depends_[static_cast<std::size_t>(n.inputs[i])] || !passes(n, i, graph_.node(n.inputs[i]))) continue;
    add(n.inputs[i], n.op->vjp({in, graph_.tensor(id), ct, n.attrs, static_cast<int>(i)}));
  }
}

// ---- the public functions ----

namespace {

bool depends_on(Tensor t, Tensor x) {
  Graph& g = t.graph();
  std::vector<char> marked(static_cast<std::size_t>(t.id() + 1), 0);
  if (&g == &x.graph()) {
    if (x.id() > t.id()) return false;
    marked[static_cast<std::size_t>(x.id())] = 1;
  } else {
    for (const Capture& c : g.captures())
      if (c.id <= t.id() && (c.outer == x || depends_on(c.outer, x))) marked[static_cast<std::size_t>(c.id)] = 1;
  }
  return dependents(g.nodes(), std::move(marked))[static_cast<std::size_t>(t.id())];
}

// x's node in g. An x from outside is refused if it also comes in by another way, whose path would be missed.
NodeId wrt_node(Graph& g, Tensor x) {
  if (&x.graph() == &g) return x.id();
  const NodeId id = g.lift(x);
  for (const Capture& c : g.captures())
    if (c.outer != x && depends_on(c.outer, x))
      throw GradError(fmt::format("[grad] inside a body, the derivative with respect to {} would miss its path through {}, "
                                  "which also comes from outside; pass x in as a carry or an input of the body",
                                  describe(x), describe(c.outer)));
  return id;
}

// Where every path from x to y ends, for the error message.
std::string where_cut(Tensor y, NodeId x) {
  Graph& g = y.graph();
  std::vector<char> touched(static_cast<std::size_t>(g.size()), 0);
  touched[static_cast<std::size_t>(x)] = 1;
  std::string cuts;
  for (NodeId id = x + 1; id <= y.id(); ++id) {
    const Node& n = g.node(id);
    for (std::size_t i = 0; i < n.inputs.size(); ++i) {
      if (!touched[static_cast<std::size_t>(n.inputs[i])]) continue;
      const Node& source = g.node(n.inputs[i]);
      touched[static_cast<std::size_t>(id)] = 1;
      std::string why;
      if (n.op->kind == OpKind::value && !n.op->vjp) why = n.op->not_differentiable;
      else if (n.op->kind == OpKind::value && n.op->cut && !n.op->cut(static_cast<int>(i)).empty()) why = n.op->cut(static_cast<int>(i));
      else if (!is_float(n.spec.dtype) && is_float(source.spec.dtype) && n.op->kind != OpKind::scan) why = "integers have no derivative";
      if (!why.empty() && cuts.size() < 400) cuts += fmt::format("{}at {}: {}", cuts.empty() ? "" : "; ", describe(g.tensor(id)), why);
    }
  }
  if (!touched[static_cast<std::size_t>(y.id())]) return "x never meets y";
  return cuts.empty() ? "the path ends inside a scan" : "the path is cut " + cuts;
}

std::vector<Tensor> pull_back_or_fail(std::string_view rule, std::span<const Seed> seeds, const std::vector<Tensor>& x,
                                      GradOptions options) {
  if (seeds.empty()) throw GradError(fmt::format("[{}] there is nothing to differentiate", rule));
  for (const Tensor& t : x)
    if (!is_float(t.dtype())) throw GradError(fmt::format("[{}] {} is an integer and has no derivative", rule, describe(t)));
  std::vector<Tensor> out = pull_back(seeds, x);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (out[i].defined()) continue;
    const Tensor y = seeds[0].value;
    if (!options.allow_zero) {
      const bool reachable = y.graph().descends_from(x[i].graph());
      throw GradError(fmt::format("[{}] y = {} does not depend on x = {}: {}. If zero is what you mean, ask for it with allow_zero",
                                  rule, describe(y), describe(x[i]),
                                  reachable ? where_cut(y, y.graph().lift(x[i])) : "x never meets y"));
    }
    out[i] = zeros(x[i].dtype(), x[i].shape());
  }
  return out;
}

void check_pairs(std::string_view rule, std::string_view what, const std::vector<Tensor>& values, const std::vector<Tensor>& with) {
  if (values.size() != with.size()) throw GradError(fmt::format("[{}] {} values, {} {}s", rule, values.size(), with.size(), what));
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i].spec() != with[i].spec())
      throw ShapeError(fmt::format("[{}] {} {} is {}, its value is {}", rule, what, i, to_string(with[i].spec()), to_string(values[i].spec())));
}

}  // namespace

std::vector<Tensor> pull_back(std::span<const Seed> seeds, std::span<const Tensor> wrt, std::span<const Tensor> initial) {
  if (seeds.empty()) return {initial.begin(), initial.end()};
  // Seeds of an outer graph cannot depend on anything inside; the deepest seed decides where the walk runs.
  Graph* g = &seeds[0].value.graph();
  for (const Seed& s : seeds)
    if (s.value.graph().depth() > g->depth()) g = &s.value.graph();
  std::vector<Seed> here;
  for (const Seed& s : seeds) here.push_back({g->tensor(g->lift(s.value)), s.cotangent});
  std::vector<NodeId> ids;
  std::vector<std::size_t> position;
  std::vector<Tensor> starts;
  std::vector<Tensor> out(initial.begin(), initial.end());
  out.resize(wrt.size());
  for (std::size_t i = 0; i < wrt.size(); ++i) {
    if (!g->descends_from(wrt[i].graph())) continue;
    ids.push_back(wrt_node(*g, wrt[i]));
    position.push_back(i);
    starts.push_back(out[i]);
  }
  Reverse reverse(*g, here, ids, starts);
  reverse.run();
  for (std::size_t k = 0; k < ids.size(); ++k) out[position[k]] = reverse.cotangent(ids[k]);
  return out;
}

std::vector<Tensor> grad(Tensor y, const std::vector<Tensor>& x, GradOptions options, Loc loc) {
  if (y.spec().size() != 1 || !is_float(y.dtype()))
    throw GradError(fmt::format("[grad] y must be one floating number, it is {} (at {}); sum() it, or use vjp()", describe(y), describe(loc)));
  const Seed seed{y, broadcast_to({y.graph().constant(Array::scalar(1, y.dtype()), loc), loc}, y.shape())};
  return pull_back_or_fail("grad", std::span(&seed, 1), x, options);
}

std::vector<Tensor> vjp(const std::vector<Tensor>& y, const std::vector<Tensor>& cotangents, const std::vector<Tensor>& x,
                        GradOptions options, Loc) {
  check_pairs("vjp", "cotangent", y, cotangents);
  std::vector<Seed> seeds;
  for (std::size_t i = 0; i < y.size(); ++i) seeds.push_back({y[i], cotangents[i]});
  return pull_back_or_fail("vjp", seeds, x, options);
}

std::vector<Tensor> jvp(const std::vector<Tensor>& y, const std::vector<Tensor>& x, const std::vector<Tensor>& tangents,
                        GradOptions options, Loc) {
  check_pairs("jvp", "tangent", x, tangents);
  // The VJP is linear in u, so its value at u does not matter.
  std::vector<Tensor> u;
  std::vector<Seed> seeds;
  for (const Tensor& t : y) {
    u.push_back(probe(broadcast_to(zero_like(t), t.shape())));
    seeds.push_back({t, u.back()});
  }
  const std::vector<Tensor> g = pull_back_or_fail("jvp", seeds, x, options);
  std::vector<Seed> second;
  for (std::size_t i = 0; i < g.size(); ++i) second.push_back({g[i], tangents[i]});
  std::vector<Tensor> out = pull_back(second, u);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (out[i].defined()) continue;
    if (!options.allow_zero) throw GradError(fmt::format("[jvp] y = {} does not depend on any x", describe(y[i])));
    out[i] = zeros(y[i].dtype(), y[i].shape());
  }
  return out;
}

std::vector<Tensor> hvp(Tensor y, const std::vector<Tensor>& x, const std::vector<Tensor>& v, GradOptions options, Loc loc) {
  check_pairs("hvp", "vector", x, v);
  return vjp(grad(y, x, options, loc), v, x, options, loc);
}

}  // namespace nestgrad
