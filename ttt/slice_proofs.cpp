#include "ttt/slice_proofs.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <optional>

#include "autograd/grad.h"
#include "engine/core/index.h"
#include "engine/plan/flow.h"
#include "ttt/one_text.h"

namespace nestgrad::ttt {

namespace {

constexpr int kSequences = 0, kHeads = 1, kColumns = 3;  // axes of a state; the first two of rows of tokens too

// A graph that only questions are asked of.
std::unique_ptr<Graph> scratch() {
  return std::make_unique<Graph>(GraphOptions{.parent = context().emit.graph, .hoist = false});
}

// Inputs like these of fewer heads.
Views inputs_like(const Views& views, std::int64_t heads) {
  const auto input_like = [heads](Tensor x) {
    Spec spec = x.spec();
    if (spec.shape[kHeads] != 1) spec.shape[kHeads] = heads;  // 1: of all heads, or there is one
    return context().emit.graph->input(spec);
  };
  Views out = views;
  for (Tensor* rows : {&out.q, &out.k, &out.v}) *rows = input_like(*rows);
  for (auto& [name, gate] : out.gates) gate = input_like(gate);
  if (out.starts.defined()) out.starts = input_like(out.starts);
  return out;
}

bool has_own_rule(const std::deque<GraphNode>& nodes) {
  return std::ranges::any_of(nodes, [](const GraphNode& n) {
    return n.attrs.find<CustomAttrs>() || (is_scan(n) && has_own_rule(body_of(n).nodes));
  });
}

// Why slices of these values along `axis` are not made each of its slices of the seeds, all alike; empty if they are.
std::string why_not_along(Graph& graph, const std::vector<NodeId>& values, int axis,
                          const std::vector<std::pair<NodeId, AxisFlow>>& seeds) {
  const std::vector<AxisFlow> flows =
      follow(graph.nodes(), seeds, {.rules = true, .constant_carries = true});
  for (const NodeId id : values) {
    const AxisFlow& flow = flows[uz(id)];
    if (flow.kind == AxisFlow::Kind::along && flow.axis == axis) continue;
    if (flow.kind == AxisFlow::Kind::free && !may_vary(graph.nodes(), id, axis)) continue;
    const bool mixed = flow.kind == AxisFlow::Kind::mixed;
    return fmt::format("at {}, {}", describe(graph.tensor(mixed ? flow.culprit : id)),
                       mixed ? flow.why : "which does not follow them");
  }
  return {};
}

// The state that a learner begins with, and from any such state, inputs, the answers and states that it comes to; in the plainest
// form, as another one might be chosen for another number of heads.
std::vector<Tensor> learnt(const Learner& learner, const Views& views, const InnerLoopOptions& options) {
  InnerLoopOptions plain = options;
  plain.form = FormChoice::primal;
  const State start = State::start(learner, for_batch(learner.init(), views.k.dim(kSequences)));
  std::vector<Tensor> out = start.flat(), from;
  for (const Tensor& x : out) from.push_back(context().emit.graph->input(x.spec(), "state"));
  const InnerLoopResult r = train_along(learner, start.with(from), views, plain);
  for (const Tensor& x : r.state.flat()) out.push_back(x);
  out.push_back(r.output);
  return out;
}

// What is learnt, as a graph of its own.
struct Text {
  std::unique_ptr<Graph> graph = scratch();
  std::vector<NodeId> outs;
  std::vector<ParamSpec> params;
  std::vector<Tensor> values;  // of the parameters

  void take(const std::vector<Tensor>& made) {
    for (const Tensor& t : made) outs.push_back(graph->lift(t));
  }
};

Text text_of_heads(const System& system, SystemSizes sizes, const Views& views,
                   const InnerLoopOptions& options, std::int64_t parts) {
  Text out;
  const GraphScope scope(*out.graph);
  sizes.heads /= parts;
  const Views rows = inputs_like(views, sizes.heads);
  ParamTable table(*out.graph, views.k.dtype());
  const std::unique_ptr<Learner> learner = learner_of(system, Params(table), sizes);
  out.take(learnt(*learner, rows, options));
  out.params = table.specs(), out.values = table.tensors();
  return out;
}

// Where the parameters of all heads have an axis along which those of a part have less, it is that of the heads.
std::string find_heads(const Text& all, const Text& some, std::int64_t parts,
                       std::vector<std::pair<NodeId, AxisFlow>>& seeds) {
  if (all.params.size() != some.params.size())
    return fmt::format("of all heads it asks for {} parameters, of a part of them for {}", all.params.size(),
                       some.params.size());
  for (std::size_t i = 0; i < all.params.size(); ++i) {
    const Shape &whole = all.params[i].shape, &part = some.params[i].shape;
    const std::string& name = all.params[i].name;
    if (name != some.params[i].name || whole.size() != part.size())
      return fmt::format("it asks for other parameters where it has fewer heads: '{}' {}, '{}' {}", name,
                         to_string(whole), some.params[i].name, to_string(part));
    int axes = 0;
    for (std::size_t a = 0; a < whole.size(); ++a) {
      if (whole[a] == part[a]) continue;
      if (part[a] * parts != whole[a] || ++axes > 1)
        return fmt::format("its parameter '{}' is {} of all heads and {} of each part", name,
                           to_string(whole), to_string(part));
      seeds.emplace_back(all.values[i].id(), AxisFlow::along(static_cast<int>(a)));
    }
  }
  return {};
}

}  // namespace

std::string why_not_from_the_left(const Learner& learner, const State& start, const Views& views,
                                  const InnerLoopOptions& options) {
  const std::unique_ptr<Graph> graph = scratch();
  const GraphScope scope(*graph);
  std::vector<Tensor> first, directions;
  for (const Tensor& x : start.flat()) {
    first.push_back(graph->input(x.spec(), "state"));
    directions.push_back(graph->input(x.spec(), "direction"));
  }
  const std::vector<Tensor> last = train_along(learner, start.with(first), views, options).state.flat();
  if (has_own_rule(graph->nodes()))
    return "a function has a rule of its own (custom_vjp), and its derivative need not be that of what is computed";
  std::vector<NodeId> moved;
  for (const Tensor& t : jvp(last, first, directions, {.allow_zero = true}))
    moved.push_back(graph->lift(t));
  std::vector<std::pair<NodeId, AxisFlow>> seeds;
  for (const Tensor& d : directions) seeds.emplace_back(d.id(), AxisFlow::along(kColumns));
  const std::string why = why_not_along(*graph, moved, kColumns, seeds);
  if (why.empty()) return {};
  return fmt::format(
      "columns of a state meet, or are not moved alike, {}: it is not moved by a matrix from the left", why);
}

std::string why_heads_are_no_parts(const System& system, const SystemSizes& sizes, const Views& views,
                                   const InnerLoopOptions& options, std::int64_t parts) {
  for (const auto& [name, gate] : views.gates)
    if (gate.dim(kHeads) != sizes.heads)
      return fmt::format("the gate '{}' is {}, not one for each of {} heads", name, to_string(gate.spec()),
                         sizes.heads);
  const Text all = text_of_heads(system, sizes, views, options, 1);
  std::optional<Text> some;
  try {
    some = text_of_heads(system, sizes, views, options, parts);
  } catch (const std::exception& e) {  // a System's own, which may throw anything
    return fmt::format("a learner of {} of the heads cannot be made: {}", sizes.heads / parts, e.what());
  }
  std::vector<std::pair<NodeId, AxisFlow>> seeds;
  if (std::string why = find_heads(all, *some, parts, seeds); !why.empty()) return why;
  for (const auto& seed : member_seeds(all.graph->nodes(), kHeads, 4))
    if (std::ranges::none_of(all.values, [&](const Tensor& p) { return p.id() == seed.first; }))
      seeds.push_back(seed);
  if (std::string why = why_not_along(*all.graph, all.outs, kHeads, seeds); !why.empty())
    return "heads meet, or one is told from another by its place, " + why;
  const bool is_one = sizes.heads == parts;
  const std::string other = why_not_one_text({*all.graph, all.outs}, {*some->graph, some->outs}, is_one);
  return other.empty() ? "" : "a learner of fewer heads is not that part of the learner of all: " + other;
}

}  // namespace nestgrad::ttt
