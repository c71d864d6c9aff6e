#include "engine/core/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>

#include "engine/core/body.h"
#include "engine/core/convert.h"
#include "engine/core/index.h"
#include "engine/core/node_call.h"
#include "engine/core/node_text.h"
#include "engine/core/over_processes.h"

namespace nestgrad {

namespace {

// Serial numbers of live graphs. Slot s % kSlots holds s while graph s lives, so a tensor can tell without
// touching freed memory whether its graph still exists.
constexpr std::uint32_t kSlots = 1U << 20;
std::array<std::atomic<std::uint32_t>, kSlots>& slots() {
  static std::array<std::atomic<std::uint32_t>, kSlots> live{};
  return live;
}

std::uint32_t take_serial() {
  static std::atomic<std::uint32_t> next{1};
  for (std::uint32_t tries = 0; tries < kSlots; ++tries) {
    const std::uint32_t serial = next++;
    std::uint32_t free = 0;
    if (serial != 0 && slots()[serial % kSlots].compare_exchange_strong(free, serial)) return serial;
  }
  throw GraphError(fmt::format("[graph] {} graphs are alive at once; drop some", kSlots));
}

std::size_t structural_hash(const Op& op, const Attrs& attrs, std::span<const NodeId> inputs) {
  std::size_t h = std::hash<const void*>{}(&op) ^ (attrs.hash() * 31);
  for (NodeId id : inputs) h = h * 1099511628211ULL + uz(id);
  return h;
}

// Which numbers a program has, and so which of its calls are equal, may depend on the rank, as the bounds of own_part() do:
// where one process took two collectives for one, another would wait for the second. So what exchanges bytes is a node for
// each call, in traces and in plans; vary(), whose derivative does, is one where its operand is the same node in every
// process: an input of the program or another op over processes. In the body of a loop an input may stand for anything.
bool is_one_node_everywhere(const Graph& graph, const Op& op, const Attrs& attrs,
                            std::span<const NodeId> inputs) {
  if (!goes_over_processes(op, attrs)) return true;
  if (exchanges(op, attrs) || graph.parent()) return false;
  return std::ranges::all_of(inputs, [&](NodeId id) {
    return graph.node(id).op->kind == OpKind::input || goes_over_processes(graph.node(id));
  });
}

Spec no_infer(const OpCall& call) { call.shape_error("leaf nodes are made by the graph"); }

}  // namespace

constinit const Op input_op = {.name = "input",
                               .doc = "A value given when the function is called.",
                               .kind = OpKind::input,
                               .infer = no_infer,
                               .why_no_derivative = "it is a leaf",
                               .is_shared = false,
                               .describe = [](const Attrs& a) { return a.as<InputAttrs>().name; }};

constinit const Op constant_op = {.name = "constant",
                                  .doc = "A literal array.",
                                  .kind = OpKind::constant,
                                  .infer = no_infer,
                                  .why_no_derivative = "it is a leaf",
                                  .describe = [](const Attrs& a) {
                                    const Array& literal = a.as<ConstantAttrs>().literal;
                                    return literal.size() == 1 ? fmt::format("{:.9g}", literal.item())
                                                               : std::string("...");
                                  }};

namespace {
// Literals lie on the CPU, in buffers of their own.
ConstantAttrs with_literal(Array value, Loc loc) {
  if (!value.defined())
    throw ValueError(fmt::format("[constant] the array holds no numbers (at {})", describe(loc)));
  return {value.device().is_cpu() ? std::move(value).unshared() : value.to(Device::cpu())};
}
}  // namespace

// ---- Tensor ----

Tensor::Tensor(Graph& graph, NodeId id) : graph_(&graph), id_(id), serial_(graph.serial_) {}

bool Tensor::alive() const {
  return graph_ && slots()[serial_ % kSlots].load(std::memory_order_relaxed) == serial_;
}

Graph& Tensor::graph() const {
  if (!graph_) throw GraphError("[tensor] this tensor names nothing; assign it the result of an op first");
  if (!alive())
    throw GraphError(
        "[tensor] the graph of this tensor is gone: it escaped from a trace or a scan body; "
        "return it from there instead");
  return *graph_;
}

const Spec& Tensor::spec() const { return graph().node(id_).spec; }

std::int64_t Tensor::dim(int axis, Loc loc) const {
  const int r = rank();
  if (axis < -r || axis >= r)
    throw ShapeError(fmt::format("[{}] axis {} of {} does not exist{}", called("dim"), axis, describe(*this),
                                 at_line(users_line(loc))));
  return shape()[uz(axis < 0 ? axis + r : axis)];
}

// ---- nodes ----

std::string input_name(const GraphNode& n) {
  const InputAttrs* input = n.attrs.find<InputAttrs>();
  return input ? input->name : std::string();
}

std::vector<Spec> specs_of(const std::deque<GraphNode>& nodes, std::span<const NodeId> ids) {
  std::vector<Spec> specs;
  specs.reserve(ids.size());
  for (NodeId id : ids) specs.push_back(nodes[uz(id)].spec);
  return specs;
}

// ---- SharedNodes ----

void SharedNodes::add(std::size_t hash, NodeId id) {
  if (2 * (taken_ + 1) > slots_.size()) {
    std::vector<Slot> before(std::max<std::size_t>(64, 2 * slots_.size()));
    before.swap(slots_);
    taken_ = 0;
    for (const Slot& slot : before)
      if (slot.id >= 0) add(slot.hash, slot.id);
  }
  std::size_t at = home(hash);
  while (slots_[at].id >= 0) at = (at + 1) & (slots_.size() - 1);
  slots_[at] = {hash, id};
  ++taken_;
}

// ---- Graph ----

Graph::Graph(GraphOptions options) : options_(options), serial_(take_serial()) {
  if (options_.parent) depth_ = options_.parent->depth_ + 1;
}

Graph::~Graph() { slots()[serial_ % kSlots].store(0, std::memory_order_relaxed); }

bool Graph::descends_from(const Graph& other) const {
  for (const Graph* g = this; g; g = g->parent())
    if (g == &other) return true;
  return false;
}

NodeId Graph::push(GraphNode node) {
  node.of_numbers = node.op->is_shared &&
                    std::ranges::all_of(node.inputs, [&](NodeId in) { return this->node(in).of_numbers; });
  nodes_.push_back(std::move(node));
  return size() - 1;
}

Tensor Graph::input(Spec spec, std::string name, Loc loc) {
  check_spec("input", spec);
  GraphNode node{.op = &input_op,
                 .attrs = InputAttrs{std::move(name)},
                 .spec = std::move(spec),
                 .loc = users_line(loc)};
  inputs_.push_back(push(std::move(node)));
  return tensor(inputs_.back());
}

Tensor Graph::input(Array value, std::string name, Loc loc) {
  if (!value.defined())
    throw ValueError(fmt::format("[input] the array{} holds no numbers{}",
                                 name.empty() ? "" : " '" + name + "'", at_line(users_line(loc))));
  Tensor t = input(value.spec(), std::move(name), loc);
  node(t.id()).value = std::move(value).unshared().to(Device::cpu());  // where eager graphs compute
  return t;
}

Tensor Graph::constant(Array value, Loc loc) {
  return append(constant_op, {}, with_literal(std::move(value), loc), loc);
}

Tensor Graph::append(const Op& op, std::span<const Tensor> inputs, Attrs attrs, Loc loc, const Spec* known) {
  std::vector<NodeId> ids(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) ids[i] = lift(inputs[i]);
  const std::size_t hash = structural_hash(op, attrs, ids);
  if (op.is_shared && options_.share) {
    const NodeId equal = shared_.find(hash, [&](NodeId id) {
      const GraphNode& n = node(id);
      return n.op == &op && n.inputs == ids && n.attrs == attrs;
    });
    if (equal >= 0 && is_one_node_everywhere(*this, op, attrs, ids)) return tensor(equal);
  }
  const ThreadContext::Emit& state = context().emit;
  Spec spec = known                         ? *known
              : op.kind == OpKind::constant ? attrs.as<ConstantAttrs>().literal.spec()
                                            : infer({op, specs_of(nodes_, ids), attrs, {}, &nodes_, ids});
  GraphNode n{.op = &op,
              .attrs = std::move(attrs),
              .inputs = std::move(ids),
              .spec = std::move(spec),
              .level = state.level,
              .vjp_of = state.vjp_of.graph_ == this ? state.vjp_of.id() : -1,
              .region = state.region,
              .loc = state.loc.value_or(loc),
              .scope = state.scope};
  const NodeId id = push(std::move(n));
  if (options_.mode == GraphMode::eager) run(node(id));
  if (options_.simplify && op.simplify)
    if (Tensor simpler = op.simplify(tensor(id)); simpler.defined())
      return simpler;  // node id is dead; not shared
  if (op.is_shared && options_.share) shared_.add(hash, id);
  return tensor(id);
}

NodeId Graph::lift(Tensor t) {
  Graph& home = t.graph();
  if (&home == this) return t.id();
  if (home.node(t.id()).op->kind == OpKind::constant)
    return append(constant_op, {}, home.node(t.id()).attrs, home.node(t.id()).loc).id();
  if (!descends_from(home))
    throw GraphError(fmt::format(
        "[lift] {} belongs to another graph that is not open here; pass it in as an input", describe(t)));
  for (const Capture& capture : captures_)
    if (capture.outer == t) return capture.id;
  const GraphNode& outer = home.node(t.id());
  const std::string name = input_name(outer);
  const NodeId id = push({.op = &input_op,
                          .attrs = InputAttrs{name.empty() ? fmt::format("outer %{}", t.id()) : name},
                          .spec = outer.spec,
                          .loc = outer.loc,
                          .scope = outer.scope});
  captures_.push_back({t, id});
  return id;
}

// ---- emitting ----

int new_region() {
  static std::atomic<int> last{0};
  return ++last;
}

Scope::Scope(std::string_view name, Loc loc) {
  ThreadContext::Emit& state = context().emit;
  state.scope = {state.scope, name};
  if (!state.loc) state.loc = loc;
}

namespace {
void note_composite(std::string_view name) {
  std::string_view& outer = context().emit.composite;
  if (outer.empty()) outer = name;
}
}  // namespace

CompositeCall::CompositeCall(std::string_view name) { note_composite(name); }
CompositeScope::CompositeScope(std::string_view name, Loc loc) : Scope(name, loc) { note_composite(name); }

namespace {

Graph& target_graph(const Op& op, std::span<const Tensor> inputs) {
  Graph* deepest = nullptr;
  for (const Tensor& t : inputs) {
    Graph& g = t.graph();
    if (g.node(t.id()).op->kind == OpKind::constant) continue;
    if (!deepest || g.depth() > deepest->depth()) deepest = &g;
  }
  Graph* current = context().emit.graph;
  if (!deepest && !current && !inputs.empty()) return inputs[0].graph();
  if (!deepest && !current)
    throw GraphError(fmt::format("[{}] no graph is open: call this inside trace(), or under a GraphScope",
                                 called(op.name)));
  if (!deepest) return *current;
  if (!current) return *deepest;
  // A probe names its input where the name is used, so it never moves outwards.
  Graph* g = current;
  while (g != deepest && g->options().hoist && g->parent() && op.is_shared) g = g->parent();
  if (!current->descends_from(*deepest)) return *current;  // lift() names the foreign operand
  return *g;
}

}  // namespace

Tensor emit(const Op& op, std::span<const Tensor> inputs, Attrs attrs, Loc loc) {
  try {
    return target_graph(op, inputs).append(op, inputs, std::move(attrs), loc);
  } catch (const ShapeError& e) {
    throw ShapeError(fmt::format("{} (at {})", e.what(), describe(users_line(loc))));
  } catch (const DTypeError& e) {
    throw DTypeError(fmt::format("{} (at {})", e.what(), describe(users_line(loc))));
  } catch (const GraphError& e) {  // of an operand's graph, which does not know what is made of it
    const std::string_view why = e.what();
    throw GraphError(fmt::format("[{}]{} (at {})", called(op.name), why.substr(why.find(']') + 1),
                                 describe(users_line(loc))));
  }
}

Tensor emit(const Op& op, std::initializer_list<Tensor> inputs, Attrs attrs, Loc loc) {
  return emit(op, std::span<const Tensor>(inputs.begin(), inputs.size()), std::move(attrs), loc);
}

Tensor constant(Array value, Loc loc) {
  return emit(constant_op, std::span<const Tensor>{}, with_literal(std::move(value), loc), loc);
}

Tensor constant(double value, DType dtype, Loc loc) {
  try {
    return constant(Array::scalar(value, dtype), loc);
  } catch (const ValueError& e) {
    throw ValueError(fmt::format("{} (at {})", e.what(), describe(loc)));
  }
}

void check_nesting(std::string_view rule, const Graph& graph, Loc loc) {
  constexpr int kMostDepth = 500;  // a plan of 3,000 overflowed a stack of 8 MB
  if (graph.depth() >= kMostDepth)
    throw GraphError(
        fmt::format("[{}] loops and functions are nested more than {} deep; make one loop of several (at {})",
                    rule, kMostDepth, describe(loc)));
}

void check_defined(std::string_view rule, std::string_view what, std::span<const Tensor> values, Loc loc) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!values[i].defined())
      throw GraphError(fmt::format("[{}] {} {} names nothing{}: assign it the result of an op first", rule,
                                   what, i, at_line(loc)));
    if (!values[i].alive())
      throw GraphError(
          fmt::format("[{}] the graph of {} {} is gone{}: it escaped from a trace or a scan body; "
                      "return it from there instead",
                      rule, what, i, at_line(loc)));
  }
}

Tensor Operand::tensor() const {
  const auto refuse = [&](std::string_view why) { throw call_error<GraphError>("operand", loc, "{}", why); };
  if (is_number)
    refuse(fmt::format("{} is a number, and a tensor has to stand here: write constant({}, dtype)", number,
                       number));
  if (!tensor_.defined()) refuse("this tensor names nothing: assign it the result of an op first");
  if (!tensor_.alive())
    refuse("the graph of this tensor is gone: it escaped from a trace or a scan body; return it from there");
  return tensor_;
}

Tensor as_tensor(const Operand& operand, const Operand& other) {
  if (!operand.is_number) return operand.tensor();
  const Tensor like = other.tensor();
  if (!is_float(like.dtype()) && operand.number != std::trunc(operand.number))
    throw call_error<DTypeError>("operand", operand.loc,
                                 "{} would be rounded to meet {}; cast() the tensor first", operand.number,
                                 describe(like));
  if ((like.dtype() == DType::i32 && !has_i32(operand.number)) ||
      (like.dtype() == DType::f32 && is_beyond_f32(operand.number)))
    throw call_error<DTypeError>("operand", operand.loc,
                                 "{} is too large to meet {}; cast() the tensor first", operand.number,
                                 describe(like));
  return like.graph().constant(Array::scalar(operand.number, like.dtype()), operand.loc);
}

}  // namespace nestgrad
