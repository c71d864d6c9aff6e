#include "engine/plan/spread.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "engine/core/body.h"
#include "engine/core/index.h"
#include "engine/core/node_text.h"

namespace nestgrad {

namespace {

enum class Spread : std::uint8_t { any, same, own };  // any: made of constants alone

[[noreturn]] void fail(const std::deque<GraphNode>& nodes, NodeId id, const std::string& problem) {
  throw GraphError(fmt::format(
      "[processes] {} {}: own() says of an input that it is each process's own, vary() makes that of what is the "
      "same in all, all_sum() the other way round",
      describe(nodes, id), problem));
}

std::string_view text_of(Spread s) {
  return s == Spread::same ? "the same in all processes" : "each process's own";
}

using Spreads = std::vector<Spread>;
constexpr auto goes_over = [](const GraphNode& n) { return goes_over_processes(n); };

// The kinds of all nodes of a graph, or of a body whose inputs are of these kinds.
class Walk {
 public:
  Walk(const std::deque<GraphNode>& nodes, const Spreads& inputs, int of_steps)
      : nodes_(nodes), inputs_(inputs), of_steps_(of_steps) {}

  Spreads run() {
    for (NodeId id = 0; id < std::ssize(nodes_); ++id) known_.push_back(spread_of(id));
    return std::move(known_);
  }

 private:
  Spread spread_of(NodeId id) {
    const GraphNode& n = nodes_[uz(id)];
    switch (n.op->kind) {
      case OpKind::input:
        return uz(id) < inputs_.size() ? inputs_[uz(id)] : Spread::same;
      case OpKind::constant:
        return Spread::any;
      case OpKind::scan:
        loops_[id] = of_loop(id);
        return Spread::any;  // it has no value of its own
      case OpKind::final:
        return loops_.at(n.inputs[0]).carries[uz(n.attrs.as<FinalAttrs>().carry)];
      case OpKind::stack:
        return loops_.at(n.inputs[0]).nodes[uz(n.attrs.as<StackAttrs>().node)];
      case OpKind::value:
        break;
    }
    if (const CustomAttrs* custom = n.attrs.find<CustomAttrs>()) {
      const GraphBody& forward = *custom->forward;  // the rule is looked at where it has been written out
      return Walk(forward.nodes, kinds_of(n.inputs), 0).run()[uz(forward.outs[0])];
    }
    return of_value(id);
  }

  Spreads kinds_of(const std::vector<NodeId>& ids) const {
    Spreads out;
    for (const NodeId id : ids) out.push_back(known_[uz(id)]);
    return out;
  }

  struct Loop {
    Spreads nodes;    // of its body
    Spreads carries;  // after the last step, or as they began where there is none
  };
  // What is made of constants alone before a step may be of either kind after it, so that a carry's
  // kind is known once a step changes none.
  Loop of_loop(NodeId id) const {
    const GraphNode& n = nodes_[uz(id)];
    const GraphBody& body = body_of(n);
    Spreads inputs = kinds_of(n.inputs);
    for (;;) {
      Spreads made = Walk(body.nodes, inputs, body.carries + body.xs).run();
      bool again = false;
      for (NodeId c = 0; c < body.carries; ++c) {
        const Spread next = made[uz(body.outs[uz(c)])];
        Spread& carry = inputs[uz(c)];
        if (next == Spread::any || next == carry) continue;
        if (carry != Spread::any)
          fail(nodes_, id,
               fmt::format("has a carry, {}, that begins as what is {}, and becomes by {} what is {}",
                           describe(body.nodes, c), text_of(carry), describe(body.nodes, body.outs[uz(c)]),
                           text_of(next)));
        carry = next, again = true;
      }
      if (again) continue;
      inputs.resize(uz(body.carries));
      return {std::move(made), std::move(inputs)};
    }
  }

  Spread of_value(NodeId id) const {
    const GraphNode& n = nodes_[uz(id)];
    Spread all = Spread::any;
    NodeId first = -1;
    for (const NodeId in : n.inputs) {
      const Spread one = known_[uz(in)];
      if (one == Spread::any) continue;
      if (all != Spread::any && one != all)
        fail(nodes_, id,
             fmt::format("joins {}, which is {}, with {}, which is not, so that a gradient would be a part "
                         "of the whole",
                         describe(nodes_, first), text_of(all), describe(nodes_, in)));
      if (all == Spread::any) all = one, first = in;
    }
    switch (goes_over(n) ? n.op->processes : OpProcesses::none) {
      case OpProcesses::none:
        return all;
      case OpProcesses::input_to_own: {
        const bool is_of_steps = n.inputs[0] < of_steps_ && all == Spread::same;
        if (all != Spread::any && (nodes_[uz(n.inputs[0])].op->kind != OpKind::input || is_of_steps))
          fail(nodes_, id,
               fmt::format("says it of {}, which is no input{}", describe(nodes_, n.inputs[0]),
                           is_of_steps ? " of the program" : ""));
        return Spread::own;
      }
      case OpProcesses::same_to_own:
        if (all == Spread::own) fail(nodes_, id, "wants what is the same in all processes");
        return Spread::own;
      case OpProcesses::own_to_own:
      case OpProcesses::own_to_same:
        if (all == Spread::same) fail(nodes_, id, "wants what is each process's own");
        return n.op->processes == OpProcesses::own_to_own ? Spread::own : Spread::same;
    }
    return all;
  }

  const std::deque<GraphNode>& nodes_;
  const Spreads& inputs_;  // of the first nodes, which are inputs; all others are the same everywhere
  const int of_steps_;     // so many of them are carries and sequences of a loop
  Spreads known_;
  std::map<NodeId, Loop> loops_;  // by scan
};

}  // namespace

void check_spread(const std::deque<GraphNode>& nodes) {
  if (std::ranges::any_of(nodes, goes_over)) Walk(nodes, {}, 0).run();
}

}  // namespace nestgrad
