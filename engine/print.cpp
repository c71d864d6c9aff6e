// Text and DOT of a function. Both are stable: equal programs print equal text.
#include <fmt/format.h>

#include "engine/body.h"
#include "engine/function.h"
#include "engine/lower.h"

namespace nestgrad {

namespace {

std::string attributes(const Node& n) {
  if (n.op->describe) return n.op->describe(n.attrs);
  std::string text;
  for (std::int64_t v : n.attrs.ints) text += fmt::format("{}{}", text.empty() ? "" : ",", v);
  for (double v : n.attrs.reals) text += fmt::format("{}{:.9g}", text.empty() ? "" : ",", v);
  return text;
}

void print_nodes(const std::deque<Node>& nodes, const std::vector<char>& live, const std::string& indent,
                 std::string& out) {
  for (std::size_t id = 0; id < nodes.size(); ++id) {
    if (!live[id]) continue;
    const Node& n = nodes[id];
    std::string call = std::string(n.op->name);
    if (const std::string a = attributes(n); !a.empty()) call += fmt::format("[{}]", a);
    for (NodeId in : n.inputs) call += fmt::format(" %{}", in);
    const std::string type = n.op->kind == OpKind::scan ? "" : to_string(n.spec);
    out += fmt::format("{}%{} = {} : {}  level {}{}{}\n", indent, id, call, type, n.level,
                       n.op->kind == OpKind::input ? "" : "  " + describe(n.loc),
                       n.scope.empty() ? "" : "  in " + n.scope);
    if (n.op->kind != OpKind::scan) continue;
    const Body& body = *n.attrs.body;
    print_nodes(body.nodes, std::vector<char>(body.nodes.size(), 1), indent + "    ", out);
    out += indent + "    next";
    for (NodeId next : body.outs) out += fmt::format(" %{}", next);
    out += "\n";
  }
}

std::string_view level_colour(int level) {
  constexpr std::string_view colours[] = {"#dbe9f6", "#fde2c5", "#d7f0d3", "#f3d4e8", "#e4dcf5"};
  return colours[static_cast<std::size_t>(level) % std::size(colours)];
}

void dot_nodes(const std::deque<Node>& nodes, const std::vector<char>& live, const std::string& prefix,
               std::string& out) {
  for (std::size_t id = 0; id < nodes.size(); ++id) {
    if (!live[id]) continue;
    const Node& n = nodes[id];
    std::string label = std::string(n.op->name);
    if (const std::string a = attributes(n); !a.empty()) label += fmt::format(" {}", a);
    for (std::size_t at = 0; (at = label.find_first_of("\"\\", at)) != std::string::npos; at += 2)
      label.insert(at, "\\");
    const std::string type = n.op->kind == OpKind::scan ? "" : to_string(n.spec);
    out += fmt::format("  {}{} [label=\"%{} {}\\n{}\" fillcolor=\"{}\"];\n", prefix, id, id, label, type,
                       level_colour(n.level));
    for (NodeId in : n.inputs) out += fmt::format("  {}{} -> {}{};\n", prefix, in, prefix, id);
    if (n.op->kind != OpKind::scan) continue;
    const Body& body = *n.attrs.body;
    const std::string inner = fmt::format("{}{}_", prefix, id);
    out += fmt::format("  subgraph \"cluster_{}{}\" {{ label=\"body of %{}\";\n", prefix, id, id);
    dot_nodes(body.nodes, std::vector<char>(body.nodes.size(), 1), inner, out);
    out += "  }\n";
  }
}

}  // namespace

std::string Function::str() const {
  const std::deque<Node>& nodes = graph_->nodes();
  std::string out;
  std::vector<char> live = nestgrad::live_nodes(nodes, outputs_, {});
  for (NodeId id : inputs_) live[static_cast<std::size_t>(id)] = 1;
  print_nodes(nodes, live, "", out);
  out += "return";
  for (NodeId id : outputs_) out += fmt::format(" %{}", id);
  return out + "\n";
}

std::string Function::dot() const {
  const std::deque<Node>& nodes = graph_->nodes();
  std::string out =
      "digraph function {\n  node [shape=box style=\"filled,rounded\" fontname=\"sans-serif\"];\n";
  dot_nodes(nodes, nestgrad::live_nodes(nodes, outputs_, {}), "n", out);
  for (std::size_t i = 0; i < outputs_.size(); ++i)
    out +=
        fmt::format("  out{} [shape=plaintext label=\"output {}\"]; n{} -> out{};\n", i, i, outputs_[i], i);
  return out + "}\n";
}

}  // namespace nestgrad
