#include "engine/look/outline.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "engine/core/index.h"
#include "engine/look/print.h"
#include "engine/plan/dependence.h"
#include "engine/plan/liveness.h"
#include "engine/plan/readers.h"

namespace nestgrad {

namespace {

EdgeKind kind_of(int level) {
  return level == 0 ? EdgeKind::forward : level == 1 ? EdgeKind::inner_gradient : EdgeKind::meta_gradient;
}

class Builder {
 public:
  explicit Builder(const Function& f) {
    const std::deque<GraphNode>& nodes = f.graph().nodes();
    std::vector<char> given(nodes.size(), 0);
    for (NodeId id : f.inputs()) given[uz(id)] = 1;
    add_group("function", -1, 0);
    add_nodes(nodes, live_nodes(nodes, f.outputs(), {}), dependents(nodes, std::move(given), Follow::values),
              0, "", "n");
    for (const auto& [key, links] : edges_) {
      const auto& [from, to, kind, why] = key;
      out_.edges.push_back({from, to, kind, links, !why.empty(), why});
    }
  }
  Outline take() { return std::move(out_); }

 private:
  // The nodes of a graph or body, by where their readers find them.
  struct Placed {
    std::vector<int> groups;
    std::string prefix;  // of their names
    std::map<NodeId, Placed> bodies;
    std::string name(NodeId id) const { return fmt::format("{}{}", prefix, id); }
  };

  int add_group(std::string name, int parent, std::int64_t steps) {
    const int id = static_cast<int>(out_.groups.size());
    const int depth = parent < 0 ? 0 : group(parent).depth + 1;
    out_.groups.push_back({.name = std::move(name), .parent = parent, .depth = depth, .steps = steps});
    if (parent >= 0) group(parent).children.push_back(id);
    return id;
  }
  Outline::Group& group(int id) { return out_.groups[uz(id)]; }

  // The group of a scope, a path of names, inside of `base`, whose own scope is `outer`.
  int group_of(int base, std::string_view outer, std::string_view scope) {
    if (scope == outer) return base;
    if (!outer.empty() && scope.starts_with(outer) && scope[outer.size()] == '/')
      scope.remove_prefix(outer.size() + 1);
    int at = base;
    while (!scope.empty()) {
      const std::string_view name = scope.substr(0, scope.find('/'));
      scope.remove_prefix(std::min(scope.size(), name.size() + 1));
      const auto [known, fresh] = scopes_.try_emplace({at, std::string(name)}, 0);
      if (fresh) known->second = add_group(std::string(name), at, 0);
      at = known->second;
    }
    return at;
  }

  Placed add_nodes(const std::deque<GraphNode>& nodes, const std::vector<char>& live,
                   const std::vector<char>& depends, int base, const std::string& scope,
                   const std::string& prefix) {
    Placed placed{std::vector<int>(nodes.size(), -1), prefix, {}};
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (!live[i]) continue;
      const auto id = static_cast<NodeId>(i);
      const GraphNode& n = nodes[i];
      const int home = n.op->kind == OpKind::input ? base : group_of(base, scope, n.scope.str());
      placed.groups[i] = home;
      Outline::Node node{.id = id,
                         .name = placed.name(id),
                         .op = std::string(n.op->name),
                         .spec = is_scan(n) ? "" : to_string(n.spec),
                         .attrs = attributes_text(*n.op, n.attrs),
                         .line = n.loc.line() == 0 ? "" : describe(n.loc),
                         .level = n.level,
                         .inputs = n.inputs,
                         .cuts = {}};
      if (n.op->kind == OpKind::value)
        for (std::size_t k = 0; k < n.inputs.size(); ++k)
          if (const std::string_view why = why_cut(nodes, depends, n, k); !why.empty())
            node.cuts.push_back({k, std::string(why)});
      count(home, n.level);
      if (is_scan(n)) add_body(nodes, depends, id, placed);
      else add_edges(n, node, placed);
      group(home).nodes.push_back(std::move(node));
    }
    return placed;
  }

  void add_body(const std::deque<GraphNode>& nodes, const std::vector<char>& depends, NodeId id,
                Placed& placed) {
    const GraphNode& scan = nodes[uz(id)];
    const ScanAttrs& attrs = scan.attrs.as<ScanAttrs>();
    const GraphBody& body = *attrs.body;
    const int inner =
        add_group(fmt::format("scan: {} steps{}", attrs.steps, attrs.reverse ? ", reverse" : ""),
                  placed.groups[uz(id)], attrs.steps);
    Placed inside = add_nodes(body.nodes, std::vector<char>(body.nodes.size(), 1),
                              active_in_body(body, marked_inputs(scan, depends), Follow::values), inner,
                              scan.scope.str(), placed.name(id) + "_");
    for (std::size_t k = 0; k < scan.inputs.size(); ++k)
      add_edge(placed, scan.inputs[k], inside, static_cast<NodeId>(k), kind_of(scan.level), "");
    for (std::size_t k = 0; k < uz(body.carries); ++k)
      out_.next.emplace_back(inside.name(body.outs[k]), inside.name(static_cast<NodeId>(k)));
    placed.bodies.emplace(id, std::move(inside));
  }

  void add_edges(const GraphNode& n, const Outline::Node& node, const Placed& placed) {
    if (n.attrs.find<FinalAttrs>() || n.attrs.find<StackAttrs>()) {
      add_edge(placed.bodies.at(n.inputs[0]), shown_by(n), placed, node.id, kind_of(n.level), "");
      return;
    }
    for (std::size_t k = 0; k < n.inputs.size(); ++k) {
      const auto cut = std::ranges::find(node.cuts, k, &Outline::Cut::input);
      add_edge(placed, n.inputs[k], placed, node.id, kind_of(n.level),
               cut == node.cuts.end() ? "" : cut->why);
    }
  }

  void add_edge(const Placed& source, NodeId from, const Placed& target, NodeId to, EdgeKind kind,
                const std::string& why) {
    out_.links.push_back({source.name(from), target.name(to), kind, why});
    ++edges_[{source.groups[uz(from)], target.groups[uz(to)], kind, why}];
  }

  static std::string_view why_cut(const std::deque<GraphNode>& nodes, const std::vector<char>& depends,
                                  const GraphNode& n, std::size_t input) {
    const GraphNode& source = nodes[uz(n.inputs[input])];
    if (!depends[uz(n.inputs[input])] || !is_float(n.spec.dtype) || !is_float(source.spec.dtype)) return "";
    return why_no_derivative(n, input, source);
  }

  void count(int id, int level) {
    ++out_.nodes;
    for (; id >= 0; id = group(id).parent) {
      std::vector<std::int64_t>& by_level = group(id).nodes_by_level;
      by_level.resize(std::max(by_level.size(), uz(level) + 1));
      ++by_level[uz(level)];
    }
  }

  Outline out_;
  std::map<std::pair<int, std::string>, int> scopes_;
  std::map<std::tuple<int, int, EdgeKind, std::string>, std::int64_t> edges_;
};

}  // namespace

Outline outline(const Function& function) { return Builder(function).take(); }

}  // namespace nestgrad
