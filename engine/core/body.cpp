#include "engine/core/body.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "engine/core/index.h"
#include "engine/core/node_text.h"
#include "engine/core/over_processes.h"

namespace nestgrad {

namespace {

bool same_node(const GraphNode& a, const GraphNode& b) {
  return a.op == b.op && a.inputs == b.inputs && a.spec == b.spec &&
         (a.op->kind == OpKind::input || a.attrs == b.attrs);
}

// What is shown to people, too: one object then stands for both, whichever of them was there first.
bool same_labels(const GraphNode& a, const GraphNode& b) {
  const bool named = a.op->kind == OpKind::input;  // other attributes are compared by same_node
  return (!named || a.attrs == b.attrs) && a.attrs.bodies() == b.attrs.bodies() && a.level == b.level &&
         a.vjp_of == b.vjp_of && a.region == b.region && a.scope == b.scope && a.loc.line() == b.loc.line() &&
         std::string_view(a.loc.file_name()) == b.loc.file_name();
}

// Bodies within these have their numbers, so this looks at each node once however deep loops are nested.
bool same_computation(const GraphBody& a, const GraphBody& b) {
  return a.hash == b.hash && a.carries == b.carries && a.xs == b.xs && a.consts == b.consts &&
         a.outs == b.outs && std::ranges::equal(a.nodes, b.nodes, same_node);
}

std::size_t structural_hash(const GraphBody& body) {
  std::size_t h = 14695981039346656037ULL;
  const auto mix = [&h](std::size_t v) { h = (h ^ v) * 1099511628211ULL; };
  for (const GraphNode& n : body.nodes) {
    mix(std::hash<const void*>{}(n.op));
    if (n.op->kind != OpKind::input) mix(n.attrs.hash());
    for (NodeId id : n.inputs) mix(uz(id));
    for (std::int64_t extent : n.spec.shape) mix(uz(extent));
  }
  for (NodeId id : body.outs) mix(uz(id));
  return h;
}

std::shared_ptr<const GraphBody> intern(GraphBody body) {
  static std::mutex mutex;
  static auto& bodies = *new std::unordered_multimap<std::size_t, std::weak_ptr<const GraphBody>>;
  static std::uint64_t computations = 0;
  body.hash = structural_hash(body);
  const std::lock_guard lock(mutex);
  auto [first, last] = bodies.equal_range(body.hash);
  while (first != last) {
    const auto known = first->second.lock();
    if (known && same_computation(*known, body)) {
      if (std::ranges::equal(known->nodes, body.nodes, same_labels)) return known;
      body.computation = known->computation;
    }
    first = known ? std::next(first) : bodies.erase(first);
  }
  // Entries of bodies that are gone are swept whenever the table has doubled since the last sweep.
  static std::size_t swept_at = 64;
  if (bodies.size() >= swept_at) {
    std::erase_if(bodies, [](const auto& entry) { return entry.second.expired(); });
    swept_at = std::max<std::size_t>(64, 2 * bodies.size());
  }
  if (body.computation == 0) body.computation = ++computations;
  auto fresh = std::make_shared<const GraphBody>(std::move(body));
  bodies.emplace(fresh->hash, fresh);
  return fresh;
}

}  // namespace

// Group 0 is this process alone: there every value is the same in all processes, and its own.
bool goes_over_processes(const Op& op, const Attrs& attrs) {
  if (op.processes != OpProcesses::none && attrs.numbers().front() != 0) return true;
  return std::ranges::any_of(attrs.bodies(), [](const BodyPtr& b) { return b->has_collectives; });
}
bool goes_over_processes(const GraphNode& n) { return goes_over_processes(*n.op, n.attrs); }

bool exchanges(const Op& op, const Attrs& attrs) {
  const auto in_body = [](const BodyPtr& b) {
    return b->has_collectives &&
           std::ranges::any_of(b->nodes, [](const GraphNode& n) { return exchanges(*n.op, n.attrs); });
  };
  const bool itself = op.processes == OpProcesses::own_to_same || op.processes == OpProcesses::own_to_own;
  if (itself && attrs.numbers().front() != 0) return true;
  return std::ranges::any_of(attrs.bodies(), in_body);
}

Closed close_body(const Graph& graph, const Closing& closing) {
  const auto resolve = [&](NodeId id) {
    const auto i = uz(id);
    return i < closing.replace.size() && closing.replace[i] >= 0 ? closing.replace[i] : id;
  };
  std::vector<char> live(uz(graph.size()), 0);
  for (NodeId id : closing.outs) live[uz(resolve(id))] = 1;
  for (NodeId id : closing.keep) live[uz(resolve(id))] = 1;
  std::vector<NodeId> todo;
  for (NodeId id = 0; id < graph.size(); ++id)
    if (live[uz(id)]) todo.push_back(id);
  while (!todo.empty()) {
    const NodeId id = todo.back();
    todo.pop_back();
    for (NodeId in : graph.node(id).inputs)
      if (char& mark = live[uz(resolve(in))]; !mark) {
        mark = 1;
        todo.push_back(resolve(in));
      }
  }

  Closed closed;
  GraphBody body;
  std::vector<NodeId> fresh(uz(graph.size()), -1);
  const auto take = [&](NodeId id) {
    GraphNode n = graph.node(id);
    for (NodeId& in : n.inputs) in = fresh[uz(resolve(in))];
    n.vjp_of = n.vjp_of < 0 ? -1 : fresh[uz(n.vjp_of)];
    n.value = {};
    fresh[uz(id)] = static_cast<NodeId>(body.nodes.size());
    body.nodes.push_back(std::move(n));
  };
  for (NodeId id : closing.carries) take(id);
  body.carries = static_cast<int>(closing.carries.size());
  for (std::size_t i = 0; i < closing.xs.size(); ++i)
    if (live[uz(closing.xs[i])]) take(closing.xs[i]), closed.live_xs.push_back(i);
  body.xs = static_cast<int>(closed.live_xs.size());
  for (std::size_t i = 0; i < closing.consts.size(); ++i)
    if (live[uz(closing.consts[i])]) take(closing.consts[i]), closed.live_consts.push_back(i);
  body.consts = static_cast<int>(closed.live_consts.size());
  for (NodeId id = 0; id < graph.size(); ++id) {
    if (!live[uz(id)] || fresh[uz(id)] >= 0) continue;
    if (graph.node(id).op->kind == OpKind::input)
      throw GraphError(
          fmt::format("[body] {} is an input that the body was not given", describe(graph.nodes(), id)));
    take(id);
  }
  for (NodeId id : closing.outs) body.outs.push_back(fresh[uz(resolve(id))]);
  for (NodeId id : closing.keep) closed.keep.push_back(fresh[uz(resolve(id))]);
  body.has_collectives =
      std::ranges::any_of(body.nodes, [](const GraphNode& n) { return goes_over_processes(n); });
  closed.body = intern(std::move(body));
  return closed;
}

std::vector<Tensor> inline_body(const GraphBody& body, std::span<const Tensor> inputs) {
  if (static_cast<int>(inputs.size()) != body.inputs())
    throw GraphError(fmt::format("[inline] the body has {} inputs, {} given", body.inputs(), inputs.size()));
  std::vector<Tensor> made;
  made.reserve(body.nodes.size());
  std::vector<Tensor> in;
  ContextGuard guard;
  const auto around = context().emit.scope;
  for (const GraphNode& n : body.nodes) {
    if (n.op->kind == OpKind::input) {
      made.push_back(inputs[made.size()]);
      continue;
    }
    in.clear();
    for (NodeId id : n.inputs) in.push_back(made[uz(id)]);
    context().emit.level = n.level;
    context().emit.loc = n.loc;
    context().emit.scope = n.scope.empty() ? around : n.scope;
    made.push_back(emit(*n.op, in, n.attrs, n.loc));
  }
  return made;
}

}  // namespace nestgrad
