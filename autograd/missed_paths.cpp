#include "autograd/missed_paths.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/core/index.h"
#include "engine/plan/dependence.h"

namespace nestgrad {

namespace {

bool depends_on(Tensor t, Tensor x);

// Inputs of a body, other than the capture of x, whose outer tensors depend on x.
std::vector<Capture> other_ways_in(const Graph& g, Tensor x) {
  std::vector<Capture> ways;
  for (const Capture& c : g.captures())
    if (c.outer != x && depends_on(c.outer, x)) ways.push_back(c);
  for (const Capture& s : g.sources())
    if (depends_on(s.outer, x)) ways.push_back(s);
  return ways;
}

bool depends_on(Tensor t, Tensor x) {
  if (t == x) return true;
  Graph& g = t.graph();
  if (!g.descends_from(x.graph())) return false;
  std::vector<char> marked(uz(t.id() + 1), 0);
  const auto mark = [&](NodeId id) {
    if (id <= t.id()) marked[uz(id)] = 1;
  };
  if (&g == &x.graph()) {
    mark(x.id());
  } else {
    for (const Capture& c : g.captures())
      if (c.outer == x) mark(c.id);
    for (const Capture& c : other_ways_in(g, x)) mark(c.id);
  }
  return dependents(g.nodes(), std::move(marked))[uz(t.id())];
}

// Of one node of g alone.
std::vector<char> only(const Graph& g, NodeId id) {
  std::vector<char> out(uz(g.size()), 0);
  out[uz(id)] = 1;
  return out;
}

}  // namespace

void check_ways_in(Graph& g, Tensor x, std::span<const GradSeed> seeds) {
  const std::vector<Capture> ways = other_ways_in(g, x);
  for (const GradSeed& s : seeds) {
    for (const Capture& way : ways)
      if (depends_on(s.value, g.tensor(way.id)))
        throw GradError(fmt::format(
            "[grad] inside a body, the derivative with respect to {} would miss its path through {}, "
            "which also comes from outside; pass x in as a carry or an input of the body",
            describe(x), describe(way.outer)));
    g.note_derivative({s.value.id(), x});
  }
}

void check_ways_through_steps(Graph& body, const std::vector<NodeId>& carries,
                              const std::vector<NodeId>& nexts, Loc loc) {
  const std::vector<InnerDerivative> asked = body.inner_derivatives();
  for (const InnerDerivative& d : asked) {
    const auto reaches = [&](NodeId input) {
      return dependents_over_steps(body.nodes(), only(body, input), carries, nexts);
    };
    for (const Capture& c : body.captures()) {
      if (c.outer != d.wrt) continue;
      const std::vector<char> marked = reaches(c.id);
      for (std::size_t k = 0; k < carries.size(); ++k)
        if (marked[uz(nexts[k])] && dependents(body.nodes(), only(body, carries[k]))[uz(d.of)])
          throw GradError(fmt::format(
              "[grad] inside the body of a scan, the derivative of {} with respect to {} would miss its path through the "
              "steps before: carry {} is made of it (at {}). Pass x in as a carry; or, if the derivative of the step alone is meant, "
              "take it of stop_gradient(carry)",
              describe(body.tensor(d.of)), describe(d.wrt), k, describe(loc)));
    }
    const auto note = [&](const Capture& c) {
      Graph& home = c.outer.graph();
      if (home.depth() > d.wrt.graph().depth() && reaches(c.id)[uz(d.of)])
        home.note_derivative({c.outer.id(), d.wrt});
    };
    std::ranges::for_each(body.captures(), note);
    std::ranges::for_each(body.sources(), note);
  }
}

}  // namespace nestgrad
