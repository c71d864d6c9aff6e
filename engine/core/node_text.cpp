#include "engine/core/node_text.h"

#include <fmt/format.h>

#include "engine/core/index.h"
#include "engine/core/node_call.h"

namespace nestgrad {

namespace {

// sum(x, {0}) is a reduction and a reshape that drops its axis: messages speak of the sum.
const GraphNode& maker(const std::deque<GraphNode>& nodes, NodeId id) {
  const GraphNode& n = nodes[uz(id)];
  if (!n.op->is_alias || n.inputs.size() != 1) return n;
  const GraphNode& from = nodes[uz(n.inputs[0])];
  return from.op->row_reduction && describe(from.loc) == describe(n.loc) && from.scope == n.scope ? from : n;
}

// Of an input, its name too.
std::string op_text(const GraphNode& n) {
  const std::string name = input_name(n);
  return name.empty() ? std::string(n.op->name) : fmt::format("{} '{}'", n.op->name, name);
}

// The scope, but of an input, and the line, where it is known.
std::string place_text(const GraphNode& n) {
  std::string text;
  if (!n.scope.empty() && n.op->kind != OpKind::input) text = " in " + n.scope.str();
  if (n.loc.line() != 0) text += fmt::format(" ({})", describe(n.loc));
  return text;
}

}  // namespace

std::string describe(const Loc& loc) {
  if (loc.line() == 0) return {};  // not known: of an input of trace(fn, spec, ..)
  std::string_view file = loc.file_name();
  file.remove_prefix(file.find_last_of('/') + 1);
  return fmt::format("{}:{}", file, loc.line());
}

std::string at_line(Loc loc) { return loc.line() == 0 ? "" : fmt::format(" (at {})", describe(loc)); }

std::string describe(Tensor t) {
  if (!t.alive()) return "a tensor of a closed graph";
  return describe(t.graph().nodes(), t.id());
}

std::string describe(const std::deque<GraphNode>& nodes, NodeId id) {
  const GraphNode& n = nodes[uz(id)];
  return fmt::format("%{} = {} {}{}", id, op_text(maker(nodes, id)), to_string(n.spec), place_text(n));
}

std::string origin(const std::deque<GraphNode>& nodes, NodeId id) {
  return op_text(maker(nodes, id)) + place_text(nodes[uz(id)]);
}

std::string called(std::string_view op) {
  const std::string_view composite = context().emit.composite;
  return composite.empty() || composite == op ? std::string(op) : fmt::format("{}: {}", composite, op);
}

ValueError value_error(const ValueError& e, const std::deque<GraphNode>& nodes, NodeId id,
                       const std::string& more) {
  const GraphNode& n = nodes[uz(id)];
  const NodeCall call(nodes, n);
  const std::string in = n.scope.empty() ? "" : " in " + n.scope.str();
  return ValueError(fmt::format("{} (at {}{}{}; {})", e.what(), describe(n.loc), in, more,
                                static_cast<const OpCall&>(call).operands()));
}

}  // namespace nestgrad
