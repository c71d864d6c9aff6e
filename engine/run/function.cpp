#include "engine/run/function.h"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <new>

#include "engine/core/body.h"
#include "engine/core/index.h"
#include "engine/core/node_text.h"
#include "engine/plan/readers.h"
#include "engine/run/arguments.h"

namespace nestgrad {

namespace {

std::size_t count(const std::deque<GraphNode>& nodes, const std::vector<char>& live) {
  std::size_t n = 0;
  for (std::size_t id = 0; id < nodes.size(); ++id) {
    if (!live[id]) continue;
    ++n;
    if (!is_scan(nodes[id])) continue;
    const std::deque<GraphNode>& body = body_of(nodes[id]).nodes;
    n += count(body, std::vector<char>(body.size(), 1));
  }
  return n;
}

}  // namespace

// Any thread may take a plan and bring it back.
class Function::Plans {
 public:
  // One that no other caller has, until it is destroyed; a new one if all are in use.
  class Lent {
   public:
    Lent(Plans& home, const Function& f) : home_(home), plan_(home.take()) {
      if (!plan_) plan_ = std::make_unique<Plan>(f.plan({.device = f.device()}));
    }
    ~Lent() { home_.give_back(std::move(plan_)); }
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;
    Plan& plan() { return *plan_; }

   private:
    Plans& home_;
    std::unique_ptr<Plan> plan_;
  };

 private:
  std::unique_ptr<Plan> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return nullptr;
    std::unique_ptr<Plan> plan = std::move(idle_.back());
    idle_.pop_back();
    return plan;
  }
  void give_back(std::unique_ptr<Plan> plan) noexcept {
    const std::lock_guard lock(mutex_);
    try {
      idle_.push_back(std::move(plan));
    } catch (const std::bad_alloc&) {  // then the next call makes another
    }
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Plan>> idle_;  // the one used last is taken first: its memory is near
};

Function::Function(std::shared_ptr<Graph> graph, std::vector<NodeId> inputs, std::vector<NodeId> outputs)
    : graph_(std::move(graph)),
      inputs_(std::move(inputs)),
      outputs_(std::move(outputs)),
      plans_(std::make_shared<Plans>()) {
  if (!graph_) throw GraphError("[function] a function needs a graph");
  check_nodes("function", inputs_, outputs_, graph_->nodes());
  for (const NodeId id : inputs_)
    if (graph_->node(id).op->kind != OpKind::input)
      throw GraphError(fmt::format(
          "[function] {} is to be an input, and it is computed; trace the part behind it as a function of its own",
          describe(graph_->nodes(), id)));
}

const Graph& Function::graph() const {
  if (!graph_)
    throw GraphError(
        "[function] this function is empty (default made, or moved from); assign it a trace() first");
  return *graph_;
}

namespace {

Spec spec_of(const Graph& graph, const std::vector<NodeId>& nodes, std::size_t i, std::string_view what) {
  if (i >= nodes.size())
    throw GraphError(fmt::format("[function] there is no {} {}: the function has {}", what, i, nodes.size()));
  return graph.node(nodes[i]).spec;
}

}  // namespace

Spec Function::input_spec(std::size_t i) const { return spec_of(graph(), inputs_, i, "input"); }
Spec Function::output_spec(std::size_t i) const { return spec_of(graph(), outputs_, i, "output"); }

std::size_t Function::live_nodes() const {
  return count(graph().nodes(), nestgrad::live_nodes(graph().nodes(), outputs_, {}));
}

Plan Function::plan(const PlanOptions& options) const {
  return Plan(graph().nodes(), inputs_, outputs_, options);
}

std::vector<Array> Function::operator()(const std::vector<Array>& inputs) const {
  graph();  // there is one
  return Plans::Lent(*plans_, *this).plan().run(inputs);
}

Function Function::to(Device device) const {
  graph();
  Function out = *this;
  out.device_ = std::move(device);
  out.plans_ = std::make_shared<Plans>();
  return out;
}

std::vector<Tensor> Function::operator()(std::span<const Tensor> inputs, Loc loc) const {
  const Graph& graph = this->graph();
  const NodeId size = graph.size();  // of now: it may be the graph that is open, which grows
  if (inputs.size() != inputs_.size())
    throw GraphError(fmt::format("[function] {} inputs given, the function has {}{}", inputs.size(),
                                 inputs_.size(), at_line(users_line(loc))));
  const std::vector<char> live = nestgrad::live_nodes(graph.nodes(), outputs_, {});
  std::vector<Tensor> made(uz(size));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].spec() != input_spec(i))
      throw ShapeError(fmt::format("[function] input {} is {}, the function wants {}{}", i,
                                   describe(inputs[i]), describe(graph.nodes(), inputs_[i]),
                                   at_line(users_line(loc))));
    made[uz(inputs_[i])] = inputs[i];
  }
  ContextGuard guard;
  const ThreadContext::Emit around = context().emit;
  std::map<int, int> regions;  // the function's -> this call's: what one call computes again is no other's
  std::vector<Tensor> in;
  for (NodeId id = 0; id < size; ++id) {
    Tensor& t = made[uz(id)];
    const GraphNode& n = graph.node(id);
    if (t.defined() || !live[uz(id)]) continue;
    if (n.op->kind == OpKind::input)
      throw GraphError(
          fmt::format("[function] {} is needed but was not given; make it an input of the function",
                      describe(graph.nodes(), id)));
    in.clear();
    for (NodeId i : n.inputs) in.push_back(made[uz(i)]);
    ThreadContext::Emit& emission = context().emit;
    emission.level = n.level;
    emission.region = around.region;
    if (n.region != 0) {
      int& region = regions[n.region];
      if (region == 0) region = new_region();
      emission.region = region;
    }
    emission.scope = n.scope.empty() ? around.scope : ScopeName(around.scope, n.scope.str());
    t = emit(*n.op, in, n.attrs, n.loc);
  }
  std::vector<Tensor> out;
  for (NodeId id : outputs_) out.push_back(made[uz(id)]);
  return out;
}

Function trace(const TraceFn& fn, const std::vector<Spec>& inputs, Loc loc) {
  require_function("trace", "what is to be traced", fn, loc);
  auto graph = std::make_shared<Graph>();
  ContextGuard guard;
  context().emit = {.graph = graph.get()};
  std::vector<Tensor> in;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    in.push_back(graph->input(inputs[i], fmt::format("in{}", i), loc));
  const std::vector<Tensor> out = fn(in);
  check_defined("trace", "output", out, loc);
  std::vector<NodeId> outputs;
  for (const Tensor& t : out) outputs.push_back(graph->lift(t));
  // Inputs may have been added while tracing (parameters): they follow the given ones.
  std::vector<NodeId> ids = graph->inputs();
  return Function(std::move(graph), std::move(ids), std::move(outputs));
}

}  // namespace nestgrad
