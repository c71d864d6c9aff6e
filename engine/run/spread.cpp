#include "engine/run/spread.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "engine/core/body.h"
#include "engine/core/index.h"
#include "engine/core/node_text.h"
#include "engine/processes/group.h"

namespace nestgrad {

std::string text_of(const Spread& s) {
  return s->empty() ? "the same in all processes"
                    : fmt::format("each process's own in group {}", fmt::join(*s, " and "));
}

namespace {

[[noreturn]] void fail(const std::deque<GraphNode>& nodes, NodeId id, const std::string& problem) {
  throw GraphError(fmt::format(
      "[processes] {} {}: own() says of an input that it is each process's own, vary() makes that of what is the "
      "same in all, all_sum() the other way round",
      describe(nodes, id), problem));
}

// Two groups of one transport are the same processes: they go by the number of that which is met first.
class Groups {
 public:
  int of(const GraphNode& n) {
    const int id = static_cast<int>(n.attrs.numbers().front());
    const std::shared_ptr<Transport> processes = ProcessGroup::find(id);
    const auto known = std::ranges::find_if(met_, [&](const auto& group) {
      return group.first == id || (processes && group.second == processes);
    });
    if (known != met_.end()) return known->first;
    met_.emplace_back(id, processes);
    return id;
  }
  // Those of them that are not in `some`.
  std::vector<int> without(const std::set<int>& some) const {
    std::vector<int> out;
    for (const auto& [id, processes] : met_)
      if (!some.contains(id)) out.push_back(id);
    return out;
  }

 private:
  std::vector<std::pair<int, std::shared_ptr<Transport>>> met_;
};

using Spreads = std::vector<Spread>;
constexpr auto goes_over = [](const GraphNode& n) { return goes_over_processes(n); };

// The kinds of all nodes of a graph, or of a body whose inputs are of these kinds.
class Walk {
 public:
  Walk(const std::deque<GraphNode>& nodes, const Spreads& inputs, int of_steps, Groups& groups)
      : nodes_(nodes), inputs_(inputs), of_steps_(of_steps), groups_(groups) {}

  Spreads run() {
    for (NodeId id = 0; id < std::ssize(nodes_); ++id) known_.push_back(spread_of(id));
    return std::move(known_);
  }
  const std::map<NodeId, std::set<int>>& own_inputs() const { return own_inputs_; }

 private:
  Spread spread_of(NodeId id) {
    const GraphNode& n = nodes_[uz(id)];
    switch (n.op->kind) {
      case OpKind::input:
        return uz(id) < inputs_.size() ? inputs_[uz(id)] : Spread(std::in_place);
      case OpKind::constant:
        return {};
      case OpKind::scan:
        loops_[id] = of_loop(id);
        return {};  // it has no value of its own
      case OpKind::final:
        return loops_.at(n.inputs[0]).carries[uz(n.attrs.as<FinalAttrs>().carry)];
      case OpKind::stack:
        return loops_.at(n.inputs[0]).nodes[uz(n.attrs.as<StackAttrs>().node)];
      case OpKind::value:
        break;
    }
    if (const CustomAttrs* custom = n.attrs.find<CustomAttrs>()) {
      const GraphBody& forward = *custom->forward;  // the rule is looked at where it has been written out
      return Walk(forward.nodes, kinds_of(n.inputs), 0, groups_).run()[uz(forward.outs[0])];
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
      Spreads made = Walk(body.nodes, inputs, body.carries + body.xs, groups_).run();
      bool again = false;
      for (NodeId c = 0; c < body.carries; ++c) {
        const Spread& next = made[uz(body.outs[uz(c)])];
        Spread& carry = inputs[uz(c)];
        if (!next || next == carry) continue;
        if (carry)
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

  // The kind that all operands have which have one.
  Spread joined(NodeId id) const {
    Spread all;
    NodeId first = -1;
    for (const NodeId in : nodes_[uz(id)].inputs) {
      const Spread& one = known_[uz(in)];
      if (!one) continue;
      if (all && one != all)
        fail(nodes_, id,
             fmt::format("joins {}, which is {}, with {}, which is {}, so that a gradient would be a part "
                         "of the whole",
                         describe(nodes_, first), text_of(all), describe(nodes_, in), text_of(one)));
      if (!all) all = one, first = in;
    }
    return all;
  }

  // own() of an input, or of what own() says of an input.
  void take_input(NodeId id, const Spread& of, int group) {
    NodeId input = nodes_[uz(id)].inputs[0];
    while (nodes_[uz(input)].op->processes == OpProcesses::input_to_own) input = nodes_[uz(input)].inputs[0];
    const bool is_input = nodes_[uz(input)].op->kind == OpKind::input;
    const bool is_of_steps = input < of_steps_ && of && !of->contains(group);
    if (of && (!is_input || is_of_steps))
      fail(nodes_, id,
           fmt::format("says it of {}, which is no input{}", describe(nodes_, input),
                       is_of_steps ? " of the program" : ""));
    if (is_input) own_inputs_[input].insert(group);
  }

  Spread of_value(NodeId id) {
    const GraphNode& n = nodes_[uz(id)];
    const OpProcesses kind = goes_over(n) ? n.op->processes : OpProcesses::none;
    Spread all = joined(id);
    if (kind == OpProcesses::none) return all;
    const int group = groups_.of(n);
    const bool is_own = all && all->contains(group);
    if (kind == OpProcesses::input_to_own) take_input(id, all, group);
    else if (kind == OpProcesses::same_to_own && is_own)
      fail(nodes_, id, "wants what is the same in all processes");
    else if (kind != OpProcesses::same_to_own && all && !is_own)
      fail(nodes_, id,
           all->empty() ? "wants what is each process's own"
                        : fmt::format("wants what is each process's own in group {}, and this is {}", group,
                                      text_of(all)));
    if (!all) all.emplace();
    if (kind == OpProcesses::own_to_same) all->erase(group);
    else all->insert(group);
    return all;
  }

  const std::deque<GraphNode>& nodes_;
  const Spreads& inputs_;  // of the first nodes, which are inputs; all others are the same everywhere
  const int of_steps_;     // so many of them are carries and sequences of a loop
  std::map<NodeId, std::set<int>> own_inputs_;  // and the groups of which own() says it
  Groups& groups_;
  Spreads known_;
  std::map<NodeId, Loop> loops_;  // by scan
};

}  // namespace

std::vector<Spread> spreads_of(const std::deque<GraphNode>& nodes) {
  Groups groups;
  const Spreads none;
  return Walk(nodes, none, 0, groups).run();
}

std::vector<PartlyOwn> check_spread(const std::deque<GraphNode>& nodes) {
  std::vector<PartlyOwn> out;
  if (std::ranges::none_of(nodes, goes_over)) return out;
  Groups groups;
  const Spreads none;
  Walk walk(nodes, none, 0, groups);
  walk.run();
  for (const auto& [input, own] : walk.own_inputs())
    if (std::vector<int> others = groups.without(own); !others.empty())
      out.push_back({input, std::move(others)});
  return out;
}

}  // namespace nestgrad
