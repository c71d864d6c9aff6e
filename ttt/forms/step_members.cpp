#include "ttt/forms/step_members.h"

#include <fmt/format.h>

#include "engine/core/index.h"
#include "engine/plan/flow.h"

namespace nestgrad::ttt {

std::string why_members_meet(const InnerOptimizer& optimizer, const State& state, std::size_t weight,
                             const Gates& columns, bool chunks) {
  Graph scratch(GraphOptions{.parent = context().emit.graph, .hoist = false});
  const GraphScope scope(scratch);
  const auto input = [&](Tensor like, const std::string& name) {
    Spec spec = like.spec();
    if (chunks) spec.shape.insert(spec.shape.begin(), 2);
    return scratch.input(spec, name, like.graph().node(like.id()).loc);
  };
  const FastWeight& own = state.weights.at(weight);
  std::vector<Tensor> states;
  for (const Tensor& t : state.of(weight)) states.push_back(input(t, states.empty() ? own.name : "slot"));
  const Tensor gradient = input(state.of(weight)[0], "gradient");
  const Gates seen = each(columns, [&](Tensor column) { return input(column, "gate"); });
  std::vector<Tensor> next = optimizer.step(states, gradient, seen, own);
  for (Tensor& t : next) t = scratch.tensor(scratch.lift(t));
  const int rank = gradient.rank();
  for (int axis = 0; axis < rank - 2; ++axis) {
    if (gradient.dim(axis) == 1) continue;
    const std::vector<AxisFlow> flows =
        follow(scratch.nodes(), member_seeds(scratch.nodes(), axis, rank), {.positional = true});
    for (const Tensor& t : next)
      if (const AxisFlow& f = flows[uz(t.id())]; f.kind == AxisFlow::Kind::mixed)
        return fmt::format(
            "[update] sequences, heads or chunks are not independent in the step of '{}': at {}, {}. Count axes from the "
            "end, and leave all but the last two apart",
            own.name, describe_step(scratch.tensor(f.culprit)), f.why);
  }
  return {};
}

}  // namespace nestgrad::ttt
