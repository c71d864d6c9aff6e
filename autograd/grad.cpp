#include "autograd/grad.h"

#include <fmt/format.h>

#include <algorithm>

#include "autograd/reverse.h"
#include "engine/lower.h"
#include "ops/ops.h"

namespace nestgrad {

// ---- what depends on what ----

namespace {

bool passes(const Node& n, std::size_t input, const Node& source) {
  return is_float(n.spec.dtype) && is_float(source.spec.dtype) && n.op->vjp && !(n.op->cut && !n.op->cut(static_cast<int>(input)).empty());
}

// The body node whose value a projection of a scan shows.
NodeId body_node(const Node& projection) {
  const auto i = projection.attrs.ints[0];
  return projection.op->kind == OpKind::final ? projection.attrs.body->outs[static_cast<std::size_t>(i)] : static_cast<NodeId>(i);
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
          marked[id] = body->second[static_cast<std::size_t>(body_node(n))];
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

namespace {

// Rules make leaves (ones, zeros), which go to the open graph: y's own if none is open.
class OpenGraph : EmitGuard {
 public:
  explicit OpenGraph(Tensor y) {
    Graph*& open = emit_state().graph;
    if (!open || !open->descends_from(y.graph())) open = &y.graph();
  }
};

// The highest level in a graph, scan bodies included, among the nodes that are `wanted` (all, if null).
int highest_level(const std::deque<Node>& nodes, const std::vector<char>* wanted) {
  int level = 0;
  for (std::size_t id = 0; id < (wanted ? wanted->size() : nodes.size()); ++id) {
    if (wanted && !(*wanted)[id]) continue;
    level = std::max(level, nodes[id].level);
    if (nodes[id].op->kind == OpKind::scan) level = std::max(level, highest_level(nodes[id].attrs.body->nodes, nullptr));
  }
  return level;
}

}  // namespace

Reverse::Reverse(Graph& graph, std::span<const Seed> seeds, std::span<const NodeId> wrt, std::span<const Tensor> initial)
    : graph_(graph) {
  for (const Seed& s : seeds) end_ = std::max(end_, s.value.id() + 1);
  for (NodeId id : wrt) end_ = std::max(end_, id + 1);
  std::vector<char> marked(static_cast<std::size_t>(end_), 0);
  for (NodeId id : wrt) marked[static_cast<std::size_t>(id)] = 1;
  depends_ = dependents(graph.nodes(), std::move(marked));
  std::vector<NodeId> ends;
  for (const Seed& s : seeds) ends.push_back(s.value.id());
  std::vector<char> on_path = live_nodes(graph.nodes(), ends, {});
  on_path.resize(static_cast<std::size_t>(end_));
  for (std::size_t id = 0; id < on_path.size(); ++id) on_path[id] = on_path[id] && depends_[id];
  level_ = std::max(emit_state().level, 1 + highest_level(graph.nodes(), &on_path));
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
    state.level = level_;
    state.vjp_of = graph_.tensor(id);
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

// Where the paths from x to y end, for the error message.
class Cuts {
 public:
  std::string explain(Tensor y, NodeId x) {
    const Graph& g = y.graph();
    const std::vector<char> needed = live_nodes(g.nodes(), std::vector{y.id()}, {});
    std::vector<char> touched(static_cast<std::size_t>(g.size()), 0);
    touched[static_cast<std::size_t>(x)] = 1;
    touched = follow(g.nodes(), std::move(touched), &needed, true);
    if (!touched[static_cast<std::size_t>(y.id())]) return "x never meets y";
    return "the path is cut at " + text_;
  }

 private:
  // Everything that touched nodes lead to, whether or not a derivative passes. `note`: list where none passes.
  std::vector<char> follow(const std::deque<Node>& nodes, std::vector<char> touched, const std::vector<char>* needed, bool note) {
    std::unordered_map<NodeId, std::vector<char>> bodies;
    for (std::size_t id = 0; id < nodes.size(); ++id) {
      const Node& n = nodes[id];
      if (n.op->kind == OpKind::scan) {
        bodies[static_cast<NodeId>(id)] = follow_body(*n.attrs.body, marked_inputs(n, touched), note && (!needed || (*needed)[id]));
      } else if (n.op->kind == OpKind::final || n.op->kind == OpKind::stack) {
        touched[id] = touched[id] || bodies[n.inputs[0]][static_cast<std::size_t>(body_node(n))];
        continue;
      }
      for (std::size_t i = 0; i < n.inputs.size(); ++i) {
        const Node& source = nodes[static_cast<std::size_t>(n.inputs[i])];
        if (!touched[static_cast<std::size_t>(n.inputs[i])]) continue;
        touched[id] = 1;
        if (note && (!needed || (*needed)[id]) && n.op->kind == OpKind::value && !passes(n, i, source)) add(static_cast<NodeId>(id), n, i, !needed);
      }
    }
    return touched;
  }

  std::vector<char> follow_body(const Body& body, std::vector<char> inputs, bool note) {
    for (;;) {
      std::vector<char> touched(body.nodes.size(), 0);
      std::ranges::copy(inputs, touched.begin());
      touched = follow(body.nodes, std::move(touched), nullptr, false);
      bool grew = false;
      for (std::size_t i = 0; i < static_cast<std::size_t>(body.carries); ++i)
        if (touched[static_cast<std::size_t>(body.outs[i])] && !inputs[i]) inputs[i] = grew = true;
      if (grew) continue;
      return note ? follow(body.nodes, std::move(touched), nullptr, true) : touched;
    }
  }

  void add(NodeId id, const Node& n, std::size_t input, bool inside) {
    std::string_view why = "integers have no derivative";
    if (!n.op->vjp) why = n.op->not_differentiable;
    else if (n.op->cut && !n.op->cut(static_cast<int>(input)).empty()) why = n.op->cut(static_cast<int>(input));
    if (text_.size() > 400) return;
    text_ += fmt::format("{}{}%{} = {} {} ({}): {}", text_.empty() ? "" : "; ", inside ? "(in a scan) " : "", id, n.op->name,
                         to_string(n.spec), describe(n.loc), why);
  }

  std::string text_;
};

std::vector<Tensor> pull_back_or_fail(std::string_view rule, std::span<const Seed> seeds, const std::vector<Tensor>& x,
                                      GradOptions options) {
  if (seeds.empty()) throw GradError(fmt::format("[{}] there is nothing to differentiate", rule));
  for (const Tensor& t : x) {
    if (!is_float(t.dtype())) throw GradError(fmt::format("[{}] {} is an integer and has no derivative", rule, describe(t)));
    if (t.graph().node(t.id()).op->kind == OpKind::constant)
      throw GradError(fmt::format("[{}] x = {} is a number, and equal numbers are one node; give the use that you mean a "
                                  "name with probe()", rule, describe(t)));
  }
  const OpenGraph open(seeds[0].value);
  std::vector<Tensor> out = pull_back(seeds, x);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (out[i].defined()) continue;
    const Tensor y = seeds[0].value;
    if (!options.allow_zero) {
      const bool reachable = y.graph().descends_from(x[i].graph());
      throw GradError(fmt::format("[{}] y = {} does not depend on x = {}: {}. If zero is what you mean, ask for it with allow_zero",
                                  rule, describe(y), describe(x[i]),
                                  reachable ? Cuts().explain(y, y.graph().lift(x[i])) : "x never meets y"));
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
  const OpenGraph open(seeds[0].value);
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
  if (y.empty()) throw GradError("[jvp] there is nothing to differentiate");
  const OpenGraph open(y[0]);
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
