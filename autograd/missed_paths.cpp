#include "autograd/missed_paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "engine/core/index.h"
#include "engine/plan/dependence.h"

namespace nestgrad {

namespace {

// What is made of x, in its graph and in those below it. Each graph is walked once; what is appended later is not seen.
class MadeOf {
 public:
  explicit MadeOf(Tensor x) : x_(x) {}

  bool operator()(Tensor t) {
    Graph& g = t.graph();
    if (!g.descends_from(x_.graph()) || (&g == &x_.graph() && t.id() < x_.id())) return false;
    const auto [at, fresh] = marked_.try_emplace(&g);
    if (fresh) {
      std::vector<char> marked(uz(g.size()), 0);
      if (&g == &x_.graph()) marked[uz(x_.id())] = 1;
      else
        for (NodeId id : inputs(g)) marked[uz(id)] = 1;
      at->second = dependents(g.nodes(), std::move(marked));
    }
    return at->second[uz(t.id())];
  }

  // Captures of g, other than that of x, that are made of x.
  std::vector<Capture> captures(const Graph& g) {
    std::vector<Capture> out;
    for (const Capture& c : g.captures())
      if (c.outer != x_ && (*this)(c.outer)) out.push_back(c);
    return out;
  }
  // Starts of carries, and sequences, that are x or made of it.
  std::vector<Capture> sources(const Graph& g) {
    std::vector<Capture> out;
    for (const Capture& s : g.sources())
      if ((*this)(s.outer)) out.push_back(s);
    return out;
  }
  // All inputs of g by which x comes in.
  std::vector<NodeId> inputs(const Graph& g) {
    std::vector<NodeId> out;
    for (const Capture& c : g.captures())
      if ((*this)(c.outer)) out.push_back(c.id);
    for (const Capture& s : sources(g)) out.push_back(s.id);
    return out;
  }

 private:
  Tensor x_;
  std::map<const Graph*, std::vector<char>> marked_;
};

std::vector<char> marks(const Graph& g, const std::vector<NodeId>& ids) {
  std::vector<char> out(uz(g.size()), 0);
  for (NodeId id : ids) out[uz(id)] = 1;
  return out;
}

// Is one of the seeds' values made of what is marked?
bool meets(std::span<const GradSeed> seeds, const std::vector<char>& marked) {
  return std::ranges::any_of(seeds, [&](const GradSeed& s) { return marked[uz(s.value.id())] != 0; });
}

// The derivatives noted in a body, by what they are taken with respect to.
struct Asked {
  Tensor wrt;
  std::vector<NodeId> of;
};

std::vector<Asked> grouped(const std::vector<InnerDerivative>& all) {
  std::vector<Asked> out;
  for (const InnerDerivative& d : all) {
    auto at = std::ranges::find(out, d.wrt, &Asked::wrt);
    if (at == out.end()) at = out.insert(out.end(), {d.wrt, {}});
    at->of.push_back(d.of);
  }
  return out;
}

constexpr std::string_view kRemedies =
    "A body's derivative takes carries as they are. For the whole derivative take it outside of the scan, or unroll the loop; for that "
    "of the step alone";

}  // namespace

std::vector<Capture> captures_made_of(Graph& g, Tensor x, std::span<const GradSeed> seeds) {
  MadeOf made(x);
  for (const Capture& s : made.sources(g))
    if (meets(seeds, dependents(g.nodes(), marks(g, {s.id}))))
      throw GradError(fmt::format(
          "[grad] inside a body, the derivative of {} with respect to {} would miss its path through {}. {}, pass x in as a "
          "carry or an input of the body",
          describe(seeds.front().value), describe(x),
          s.outer == x ? "the carry that starts from it, or the sequence that it is"
                       : fmt::format("{}, of which a carry starts or a sequence is made", describe(s.outer)),
          kRemedies));
  std::vector<Capture> out;
  for (const Capture& c : made.captures(g))
    if (meets(seeds, dependents(g.nodes(), marks(g, {c.id})))) out.push_back(c);
  for (const GradSeed& s : seeds) g.note_derivative({s.value.id(), x});
  return out;
}

void check_ways_through_steps(Graph& body, const std::vector<NodeId>& carries,
                              const std::vector<NodeId>& nexts, Loc loc) {
  const auto over_steps = [&](const std::vector<NodeId>& from) {
    return dependents_over_steps(body.nodes(), marks(body, from), carries, nexts);
  };
  for (const Asked& asked : grouped(body.inner_derivatives())) {
    const std::vector<char> made = over_steps(MadeOf(asked.wrt).inputs(body));
    std::vector<NodeId> reached;
    for (std::size_t k = 0; k < carries.size(); ++k)
      if (made[uz(nexts[k])]) reached.push_back(carries[k]);
    const std::vector<char> after = dependents(body.nodes(), marks(body, reached));
    for (NodeId of : asked.of) {
      if (!after[uz(of)]) continue;
      const auto by = std::ranges::find_if(
          reached, [&](NodeId carry) { return dependents(body.nodes(), marks(body, {carry}))[uz(of)] != 0; });
      throw GradError(fmt::format(
          "[grad] inside the body of a scan, the derivative of {} with respect to {} would miss its path through the "
          "steps before: carry {} is made of it (at {}). {}, pass x in as a carry, or take it of stop_gradient(carry)",
          describe(body.tensor(of)), describe(asked.wrt), std::ranges::find(carries, *by) - carries.begin(),
          describe(loc), kRemedies));
    }
    // A loop around this one asks the same of what the body reads from it.
    const auto note = [&](const Capture& c) {
      Graph& home = c.outer.graph();
      if (home.depth() <= asked.wrt.graph().depth()) return;
      const std::vector<char> from = over_steps({c.id});
      if (std::ranges::any_of(asked.of, [&](NodeId of) { return from[uz(of)] != 0; }))
        home.note_derivative({c.outer.id(), asked.wrt});
    };
    std::ranges::for_each(body.captures(), note);
    std::ranges::for_each(body.sources(), note);
  }
}

}  // namespace nestgrad
