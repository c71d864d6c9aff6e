// Graphs in groups, and the picture that is drawn from them.
#include "engine/look/outline.h"

#include <map>
#include <numeric>
#include <set>

#include "tests/autograd/deriving.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

const Outline::Group& group(const Outline& o, int id) { return o.groups[static_cast<std::size_t>(id)]; }

std::int64_t total(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

// Paths of names, from the outermost group on.
std::string path(const Outline& o, int id) {
  return id == 0 ? "" : path(o, group(o, id).parent) + "/" + group(o, id).name;
}
std::vector<std::string> paths(const Outline& o) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < o.groups.size(); ++i) out.push_back(path(o, static_cast<int>(i)));
  return out;
}

bool inside(const Outline& o, int id, int of) {
  return id == of || (id > 0 && inside(o, group(o, id).parent, of));
}

std::int64_t edges_of(const Outline& o, EdgeKind kind) {
  std::int64_t n = 0;
  for (const Outline::Edge& e : o.edges) n += e.kind == kind ? e.count : 0;
  return n;
}

// Two steps of gradient descent on an inner loss, each step in a scope of its own.
Tensor two_steps(Tensor w, Tensor x, bool first_order = false) {
  for (int step = 0; step < 2; ++step) {
    const Scope scope(fmt::format("step {}", step));
    const Tensor at = first_order ? stop_gradient(w) : w;
    Tensor loss;
    {
      const Scope inner("loss");
      loss = sum(square(tanh(at * x)));
    }
    w = w - 0.1 * grad(loss, at);
  }
  return w;
}

Tensor scanned_steps(Tensor w, Tensor x, bool first_order = false) {
  const Scope outer("learn");
  return scan(
             [&](const Tensors& c, const Tensors&) -> StepOutput {
               const Scope scope("step");
               const Tensor at = first_order ? stop_gradient(c[0]) : c[0];
               const Tensor loss = sum(square(tanh(at * x)));
               return {{c[0] - 0.1 * grad(loss, at)}, {}};
             },
             {w}, {}, {.steps = 2})
      .carries[0];
}

using Learn = Tensor (*)(Tensor, Tensor, bool);

// The outer loss of what was learnt, or its gradient.
Function learnt(Learn learn, bool meta, bool first_order = false, bool of_inputs = true) {
  return trace(
      [=](Tensor w, Tensor x) -> Tensors {
        const Tensor loss = sum(square(learn(w, x, first_order)));
        if (!meta) return {loss};
        return grad(loss, of_inputs ? Tensors{w, x} : Tensors{w});
      },
      f64({3}), f64({3}));
}

std::vector<Function> programs() {
  std::vector<Function> out;
  for (int order = 0; order <= 2; ++order) {
    out.push_back(
        derivative([](const Tensors& in) { return learner(in, as_scan); }, learner_specs(4), order));
    out.push_back(
        derivative([](const Tensors& in) { return nested_learner(in, as_scan); }, learner_specs(4), order));
  }
  for (const bool meta : {false, true})
    for (const Learn learn : {two_steps, scanned_steps}) out.push_back(learnt(learn, meta));
  out.push_back(trace([](const Tensors& in) { return in; }, {f64()}));
  return out;
}

}  // namespace

TEST_CASE("Every live node is in one group, and the counts of levels add up") {
  for (const Function& f : programs()) {
    const Outline o = outline(f);
    std::size_t own = 0, operands = 0;
    std::set<std::string> names;
    for (std::size_t i = 0; i < o.groups.size(); ++i) {
      const Outline::Group& g = o.groups[i];
      std::vector<std::int64_t> by_level(g.nodes_by_level.size(), 0);
      for (const Outline::Node& n : g.nodes) {
        ++by_level.at(static_cast<std::size_t>(n.level));
        names.insert(n.name);
        operands += n.inputs.size();
      }
      for (int child : g.children) {
        CHECK(group(o, child).parent == static_cast<int>(i));
        CHECK(group(o, child).depth == g.depth + 1);
        for (std::size_t level = 0; level < group(o, child).nodes_by_level.size(); ++level)
          by_level.at(level) += group(o, child).nodes_by_level[level];
      }
      CHECK(by_level == g.nodes_by_level);
      own += g.nodes.size();
    }
    // By the text, one line a node, with a line "next" for each body and "return".
    const std::string text = f.str();
    const auto lines = static_cast<std::size_t>(std::ranges::count(text, '\n'));
    CHECK(own == lines - count(text, " next") - 1);
    CHECK(own == f.live_nodes());
    CHECK(o.nodes == f.live_nodes());
    CHECK(names.size() == f.live_nodes());
    CHECK(total(o.groups[0].nodes_by_level) == static_cast<std::int64_t>(f.live_nodes()));
    // One edge for each operand, between nodes that exist.
    CHECK(o.links.size() == operands);
    std::int64_t edges = 0;
    for (const Outline::Edge& e : o.edges) edges += e.count;
    CHECK(edges == static_cast<std::int64_t>(operands));
    for (const Outline::Link& link : o.links) {
      CHECK(names.contains(link.from));
      CHECK(names.contains(link.to));
    }
  }
}

TEST_CASE("Scopes are groups, in the order of the program") {
  const Outline o = outline(learnt(two_steps, false));
  CHECK(paths(o) == std::vector<std::string>{"", "/step 0", "/step 0/loss", "/step 1", "/step 1/loss"});
  CHECK(o.groups[0].name == "function");
  CHECK(o.groups[0].parent == -1);
  // The gradient of the loss is where the loss is.
  for (const int loss : {2, 4}) {
    REQUIRE(group(o, loss).nodes_by_level.size() == 2);
    CHECK(group(o, loss).nodes_by_level[1] > 0);
    CHECK(group(o, loss).steps == 0);
  }
  // The second step reads what the first has learnt; of its loss, only numbers that both mention.
  std::map<std::string, std::pair<int, std::string>> known;
  for (std::size_t i = 0; i < o.groups.size(); ++i)
    for (const Outline::Node& n : o.groups[i].nodes) known[n.name] = {static_cast<int>(i), n.op};
  std::size_t learnt_weights = 0;
  for (const Outline::Link& link : o.links) {
    const auto& [from, op] = known.at(link.from);
    if (known.at(link.to).first != 4) continue;
    learnt_weights += from == 1 && op == "sub";
    if (from == 2) CHECK((op == "constant" || op == "broadcast_to"));
  }
  CHECK(learnt_weights == 1);
}

TEST_CASE("The body of a scan is a group, where the scan is, and its scopes are within") {
  const Outline o = outline(learnt(scanned_steps, false));
  CHECK(paths(o) ==
        std::vector<std::string>{"", "/learn", "/learn/scan: 2 steps", "/learn/scan: 2 steps/step"});
  CHECK(group(o, 2).steps == 2);
  CHECK(group(o, 2).nodes.size() == 2);  // the carry and x
  REQUIRE(o.next.size() == 1);
  CHECK(o.next[0].second == group(o, 2).nodes[0].name);
  // What goes in, w and x, and what comes out.
  std::map<std::pair<int, int>, std::int64_t> across;
  for (const Outline::Edge& e : o.edges)
    if (inside(o, e.from, 2) != inside(o, e.to, 2)) across[{e.from, e.to}] += e.count;
  CHECK(across == std::map<std::pair<int, int>, std::int64_t>{{{0, 2}, 2}, {{3, 1}, 1}});
}

TEST_CASE("Edges are forward, of the inner gradient, or of the meta-gradient, by who emitted their end") {
  const Function plain = trace([](Tensor w, Tensor x) { return sum(tanh(w * x)); }, f64({3}), f64({3}));
  CHECK(edges_of(outline(plain), EdgeKind::inner_gradient) == 0);
  CHECK(edges_of(outline(plain), EdgeKind::meta_gradient) == 0);
  for (const Learn learn : {two_steps, scanned_steps}) {
    const Outline forward = outline(learnt(learn, false)), meta = outline(learnt(learn, true));
    CHECK(edges_of(forward, EdgeKind::forward) > 0);
    CHECK(edges_of(forward, EdgeKind::inner_gradient) > 0);
    CHECK(edges_of(forward, EdgeKind::meta_gradient) == 0);
    CHECK(edges_of(meta, EdgeKind::inner_gradient) > 0);
    CHECK(edges_of(meta, EdgeKind::meta_gradient) > 0);
    CHECK(meta.groups[0].nodes_by_level.size() == 3);
  }
  // All that goes into the scan of the outer gradient is meta-gradient.
  const Outline o = outline(learnt(scanned_steps, true));
  const auto back = std::ranges::find(o.groups, "scan: 2 steps, reverse", &Outline::Group::name);
  REQUIRE(back != o.groups.end());
  const int id = static_cast<int>(back - o.groups.begin());
  std::int64_t into = 0;
  for (const Outline::Edge& e : o.edges) {
    if (inside(o, e.from, id) || !inside(o, e.to, id)) continue;
    CHECK(e.kind == EdgeKind::meta_gradient);
    into += e.count;
  }
  CHECK(into > 0);
  // Also where a first-order cut keeps it from meeting an inner one; but not in a loop without scan.
  const auto hidden = [](Learn learn) {
    return edges_of(outline(learnt(learn, true, true, false)), EdgeKind::meta_gradient);
  };
  CHECK(hidden(scanned_steps) > 0);
  CHECK(hidden(two_steps) == 0);
}

TEST_CASE("Edges are cut where a stop_gradient is, and nowhere else") {
  const auto cuts = [](const Function& f) {
    const Outline o = outline(f);
    std::map<std::string, std::string> op_of;
    for (const Outline::Group& g : o.groups)
      for (const Outline::Node& n : g.nodes) op_of[n.name] = n.op;
    std::size_t links = 0;
    for (const Outline::Link& link : o.links) {
      CHECK((op_of[link.to] == "stop_gradient") == !link.why.empty());
      links += !link.why.empty();
    }
    std::int64_t edges = 0;
    for (const Outline::Edge& e : o.edges) {
      CHECK(e.cut == (e.why == "it stops gradients"));
      CHECK(e.cut == !e.why.empty());
      edges += e.cut ? e.count : 0;
    }
    CHECK(static_cast<std::size_t>(edges) == links);
    CHECK(links == count_op(f, "stop_gradient"));
    return links;
  };
  for (const bool meta : {false, true})
    for (const Learn learn : {two_steps, scanned_steps}) {
      CHECK(cuts(learnt(learn, meta)) == 0);
      CHECK(cuts(learnt(learn, meta, true)) >= (learn == two_steps ? 2U : 1U));
    }
}

TEST_CASE("Only an edge between floating values that an input moves is cut") {
  const auto whys = [](const Function& f) {
    std::vector<std::string> out;
    const Outline o = outline(f);
    for (const Outline::Edge& e : o.edges)
      if (e.cut) out.push_back(e.why);
    return out;
  };
  CHECK(
      whys(trace([](Tensor x) { return x * stop_gradient(exp(constant(1.0, DType::f64))); }, f64())).empty());
  CHECK(whys(trace([](Tensor x) { return cast(x, DType::i32); }, f64())).empty());
  CHECK(whys(trace([](Tensor table, Tensor i) { return gather(table, i); }, f64({3}), i32({2}))).empty());
  CHECK(whys(trace([](Tensor x) { return greater(x, 0.5); }, f64())).size() == 1);
  const std::vector<std::string> mask =
      whys(trace([](Tensor m, Tensor x) { return select(m, x, 2.0 * x); }, f64({2}), f64({2})));
  REQUIRE(mask.size() == 1);
  CHECK(contains(mask[0], "mask"));
  // By way of a carry, which an input moves only from the second step on.
  const Function late = trace(
      [](Tensor x) {
        return scan(
                   [&](const Tensors& c, const Tensors&) -> StepOutput {
                     return {{c[0] + x, c[1] + stop_gradient(c[0])}, {}};
                   },
                   {constant(0.0, DType::f64), constant(0.0, DType::f64)}, {}, {.steps = 3})
            .carries[1];
      },
      f64());
  CHECK(whys(late).size() == 1);
}

TEST_CASE("The picture declares every live node once, in clusters, and draws cuts as cut") {
  for (const bool first_order : {false, true})
    for (const Learn learn : {two_steps, scanned_steps}) {
      const Function f = learnt(learn, true, first_order);
      const Outline o = outline(f);
      const std::string dot = f.dot();
      CHECK(count(dot, " [label=\"%") == f.live_nodes());
      std::size_t cut = 0;
      for (const Outline::Group& g : o.groups)
        for (const Outline::Node& n : g.nodes) CHECK(count(dot, " " + n.name + " [label=\"%") == 1);
      for (const Outline::Link& link : o.links) {
        cut += !link.why.empty();
        CHECK(contains(dot, fmt::format("  {} -> {} [", link.from, link.to)));
      }
      CHECK((cut > 0) == first_order);
      CHECK(count(dot, "style=dashed") == cut);
      CHECK(count(dot, "label=\"\u2717\"") == cut);
      CHECK(count(dot, "subgraph \"cluster_") == o.groups.size() - 1);
      CHECK(count(dot, " -> ") == o.links.size() + o.next.size() + f.outputs().size());
      int depth = 0;
      for (const char c : dot) {
        depth += c == '{' ? 1 : c == '}' ? -1 : 0;
        CHECK(depth >= 0);
      }
      CHECK(depth == 0);
      for (const std::string_view colour : {"#dbe9f6", "#fde2c5", "#d7f0d3"})  // levels 0, 1, 2
        CHECK(contains(dot, colour));
    }
}
