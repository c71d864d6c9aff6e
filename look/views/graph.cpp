// The inner loop with its meta-gradient, as a program: its groups, levels and nodes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "autograd/grad.h"
#include "engine/look/outline.h"
#include "look/open_loop.h"
#include "look/views.h"

namespace nestgrad::look {

MetaProgram meta_program(const InspectedLoop& inspected, DType dtype, int checkpoint_every) {
  MetaProgram out;
  const OpenProgram program(
      inspected, {},
      [&](OpenLoop& loop, const std::vector<Tensor>&) {
        InnerLoopOptions options = loop.options;
        options.checkpoint_every = checkpoint_every;
        const Tensor loss = sum(loop.run(options).output * loop.cotangent);
        std::vector<Tensor> results = grad(loss, loop.trained, {.allow_zero = true});
        results.insert(results.begin(), loss);
        out.outputs = loop.names;
        out.outputs.insert(out.outputs.begin(), "loss");
        return results;
      },
      dtype);
  out.function = program.function();
  out.inputs = program.fixed();
  return out;
}

namespace {

constexpr std::int64_t kMostGroups = 40;  // of a graph that is drawn

int busiest_level(const Outline::Group& g) {
  return static_cast<int>(std::ranges::max_element(g.nodes_by_level) - g.nodes_by_level.begin());
}

Table levels(const Outline::Group& root) {
  Table out{.title = "Nodes by level", .columns = {"level", "nodes"}};
  for (std::size_t i = 0; i < root.nodes_by_level.size(); ++i)
    out.rows.push_back({level_name(static_cast<int>(i), static_cast<int>(root.nodes_by_level.size())),
                        std::to_string(root.nodes_by_level[i])});
  return out;
}

Diagram diagram(const Outline& all) {
  Diagram out{.title = "Groups of the program"};
  std::vector<int> box(all.groups.size(), -1);
  for (std::size_t i = 0; i < all.groups.size(); ++i) {
    const Outline::Group& g = all.groups[i];
    if (g.nodes.empty()) continue;
    box[i] = static_cast<int>(out.boxes.size());
    out.boxes.push_back({g.name, fmt::format("{} nodes", g.nodes.size()), busiest_level(g)});
  }
  for (const Outline::Edge& e : all.edges) {
    const int from = box[static_cast<std::size_t>(e.from)], to = box[static_cast<std::size_t>(e.to)];
    if (from < 0 || to < 0 || (from == to && !e.cut)) continue;
    using Kind = Diagram::Arrow::Kind;
    const Kind kind = e.kind == EdgeKind::forward          ? Kind::forward
                      : e.kind == EdgeKind::inner_gradient ? Kind::inner_gradient
                                                           : Kind::meta_gradient;
    out.arrows.push_back({from, to, kind, e.cut, std::to_string(e.count)});
  }
  return out;
}

Tree tree(const Outline& all, int group) {
  const Outline::Group& g = all.groups[static_cast<std::size_t>(group)];
  const std::int64_t nodes =
      std::accumulate(g.nodes_by_level.begin(), g.nodes_by_level.end(), std::int64_t{0});
  std::string detail = fmt::format("{} nodes; by level", nodes);
  for (std::int64_t n : g.nodes_by_level) detail += fmt::format(" {}", n);
  Tree out{g.name, detail, busiest_level(g), {}};
  for (int child : g.children) out.children.push_back(tree(all, child));
  for (const Outline::Node& n : g.nodes) {
    std::string text = fmt::format("{} {}", n.spec, n.line);
    if (!n.attrs.empty()) text = n.attrs + " " + text;
    for (const Outline::Cut& cut : n.cuts) text += fmt::format("; cut: {}", cut.why);
    out.children.push_back({fmt::format("{} = {}", n.name, n.op), text, n.level, {}});
  }
  return out;
}

}  // namespace

ReportView graph_view(ViewContext& context) {
  const Function& program = context.program().function;
  context.out.graph_dot = program.dot();
  context.out.graph_text = program.str();
  const Outline all = outline(program);
  ReportView view{
      "graph", "The program", "What is computed, and which gradient wrote it?",
      "The graph of this inner loop with its full meta-gradient, in groups. Level 0 is the program as "
      "written, level 1 what the inner gradient added, level 2 and above what the outer gradient added, "
      "the gradient of the inner gradient included.\n\n"
      "Unfold a group to see its nodes: id, op, shape, and the line of code that wrote it."};
  Claim sum{"the groups hold every node once", 0, 0, "nodes"};
  std::size_t counted = 0;
  for (const Outline::Group& g : all.groups) counted += g.nodes.size();
  sum.error = std::abs(static_cast<double>(counted) - static_cast<double>(program.live_nodes()));
  view.claims = {sum};
  if (static_cast<std::int64_t>(all.groups.size()) <= kMostGroups) {
    view.reading +=
        " Arrows are coloured by the gradient that they belong to; where a gradient is stopped on purpose the arrow is cut.";
    view.pictures.push_back(diagram(all));
  }
  view.pictures.push_back(tree(all, 0));
  view.pictures.push_back(levels(all.groups[0]));
  return view;
}

}  // namespace nestgrad::look
