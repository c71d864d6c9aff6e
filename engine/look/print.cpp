// Text and DOT of a function. Both are stable: equal programs print equal text.
#include "engine/look/print.h"

#include <fmt/format.h>

#include "engine/core/body.h"
#include "engine/core/index.h"
#include "engine/look/outline.h"
#include "engine/plan/passes.h"
#include "engine/plan/readers.h"
#include "engine/run/function.h"

namespace nestgrad {

std::string attributes_text(const Op& op, const Attrs& attrs) {
  if (op.describe) return op.describe(attrs);
  std::string text;
  for (std::int64_t v : attrs.numbers()) text += fmt::format("{}{}", text.empty() ? "" : ",", v);
  return text;
}

std::string call_text(const Op& op, const Attrs& attrs) {
  const std::string words = attributes_text(op, attrs);
  return words.empty() ? std::string(op.name) : fmt::format("{}[{}]", op.name, words);
}

namespace {

void print_nodes(const std::deque<GraphNode>& nodes, const std::vector<char>& live, const std::string& indent,
                 std::string& out) {
  for (std::size_t id = 0; id < nodes.size(); ++id) {
    if (!live[id]) continue;
    const GraphNode& n = nodes[id];
    std::string call = call_text(*n.op, n.attrs);
    for (NodeId in : n.inputs) call += fmt::format(" %{}", in);
    const std::string type = is_scan(n) ? "" : to_string(n.spec);
    out += fmt::format("{}%{} = {} : {}  level {}{}{}\n", indent, id, call, type, n.level,
                       n.op->kind == OpKind::input ? "" : "  " + describe(n.loc),
                       n.scope.empty() ? "" : "  in " + n.scope.str());
    if (!is_scan(n)) continue;
    const GraphBody& body = body_of(n);
    print_nodes(body.nodes, std::vector<char>(body.nodes.size(), 1), indent + "    ", out);
    out += indent + "    next";
    for (NodeId next : body.outs) out += fmt::format(" %{}", next);
    out += "\n";
  }
}

std::string_view level_colour(int level) {
  constexpr std::string_view colours[] = {"#dbe9f6", "#fde2c5", "#d7f0d3", "#f3d4e8", "#e4dcf5"};
  return colours[uz(level) % std::size(colours)];
}

std::string quoted(std::string text) {
  for (std::size_t at = 0; (at = text.find_first_of("\"\\\n", at)) != std::string::npos; at += 2) {
    if (text[at] == '\n') text[at] = 'n';
    text.insert(at, "\\");
  }
  return text;
}

std::string_view edge_style(EdgeKind kind) {
  switch (kind) {
    case EdgeKind::forward:
      return "color=\"#404040\"";
    case EdgeKind::inner_gradient:
      return "color=\"#d07a1f\"";
    case EdgeKind::meta_gradient:
      break;
  }
  return "color=\"#3f8f35\" penwidth=1.6";
}

void dot_group(const Outline& graph, int id, const std::string& indent, std::string& out) {
  const Outline::Group& group = graph.groups[uz(id)];
  for (const Outline::Node& n : group.nodes) {
    const std::string call = n.attrs.empty() ? n.op : fmt::format("{} {}", n.op, n.attrs);
    out += fmt::format("{}{} [label=\"%{} {}\\n{}\" fillcolor=\"{}\"];\n", indent, n.name, n.id, quoted(call),
                       n.spec, level_colour(n.level));
  }
  for (int child : group.children) {
    out += fmt::format("{}subgraph \"cluster_{}\" {{ label=\"{}\";\n", indent, child,
                       quoted(graph.groups[uz(child)].name));
    dot_group(graph, child, indent + "  ", out);
    out += indent + "}\n";
  }
}

}  // namespace

std::string Function::str() const {
  const std::deque<GraphNode>& nodes = graph().nodes();
  std::string out;
  std::vector<char> live = nestgrad::live_nodes(nodes, outputs_, {});
  for (NodeId id : inputs_) live[uz(id)] = 1;
  print_nodes(nodes, live, "", out);
  out += "return";
  for (NodeId id : outputs_) out += fmt::format(" %{}", id);
  return out + "\n";
}

std::string Function::dot() const {
  const Outline graph = outline(*this);
  std::string out =
      "digraph function {\n  node [shape=box style=\"filled,rounded\" fontname=\"sans-serif\"];\n";
  dot_group(graph, 0, "  ", out);
  for (const Outline::Link& link : graph.links)
    out += fmt::format("  {} -> {} [{}{}];\n", link.from, link.to, edge_style(link.kind),
                       link.why.empty()
                           ? ""
                           : fmt::format(" style=dashed label=\"\u2717\" tooltip=\"{}\"", quoted(link.why)));
  for (const auto& [made, carry] : graph.next)
    out += fmt::format("  {} -> {} [style=dotted constraint=false];\n", made, carry);
  for (std::size_t i = 0; i < outputs_.size(); ++i)
    out +=
        fmt::format("  out{} [shape=plaintext label=\"output {}\"]; n{} -> out{};\n", i, i, outputs_[i], i);
  return out + "}\n";
}

std::string Function::explain(const PlanOptions& options) const {
  std::string out = fmt::format("as it was traced\n{}", str()), before = str();
  run_passes(graph().nodes(), inputs_, outputs_, options, false, [&](const Pass& pass, const Lowered& made) {
    const std::string now = Function(made.graph, made.inputs, made.outputs).str();
    const std::string off = pass.option.empty() ? "" : fmt::format(", off with PlanOptions::{}", pass.option);
    out += fmt::format("\n{}: {} (equal {}{})\n{}", pass.name, pass.sentence,
                       pass.keeps_bits ? "bits" : "values", off, now == before ? "nothing to do\n" : now);
    before = now;
  });
  return out += "\nthe program\n" + plan(options).str();
}

}  // namespace nestgrad
