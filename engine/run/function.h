// Function: a traced program with inputs and outputs. Call it with Arrays to run it, with Tensors to inline
// it, print it, or ask it questions.
//
//   Function f = trace([](Tensor x) { return sum(square(x)); }, Spec{DType::f64, {3}});
//   Array y = f(Array::of({1, 2, 3}, {3}));
#pragma once

#include <concepts>
#include <memory>

#include "engine/core/graph.h"
#include "engine/run/plan.h"

namespace nestgrad {

class Function {
 public:
  Function() = default;
  // Takes over a graph; inputs and outputs are nodes of it. GraphError for an input that is computed (a Plan may
  // begin there).
  Function(std::shared_ptr<Graph> graph, std::vector<NodeId> inputs, std::vector<NodeId> outputs);

  // GraphError if the function is empty: default made, or moved from. inputs() and outputs() are empty lists then.
  const Graph& graph() const;
  const std::vector<NodeId>& inputs() const { return inputs_; }
  const std::vector<NodeId>& outputs() const { return outputs_; }
  Spec input_spec(std::size_t i) const;   // GraphError where there is no such input
  Spec output_spec(std::size_t i) const;  // or output
  std::size_t live_nodes() const;         // nodes that the outputs need, scan bodies included

  // Runs the function. The plan is made at the first call and kept. Any number of threads may call one
  // Function, or its copies, at once: each call has a plan to itself, so there come to be as many plans, with
  // an arena each, as calls ran at the same time. Called with Arrays one by one it gives the first output.
  std::vector<Array> operator()(const std::vector<Array>& inputs) const;
  template <class... A>
  requires(sizeof...(A) > 0 && (std::same_as<std::remove_cvref_t<A>, Array> && ...)) Array operator()(
      const A&... inputs) const {
    output_spec(0);  // or an error that says that there is none
    return (*this)(std::vector<Array>{inputs...})[0];
  }

  // Re-emits the function on tensors of the graph that is open.
  std::vector<Tensor> operator()(std::span<const Tensor> inputs, Loc loc = Loc::current()) const;

  // For options.device, whatever device() is; so is explain().
  Plan plan(const PlanOptions& options = {}) const;

  // The same function, whose calls run there. Outputs of calls with all inputs on the CPU lie on the CPU too.
  Function to(Device device) const;
  const Device& device() const { return device_; }

  // One line a node: id, op, shape, level, line. Stable: equal programs print equal text.
  std::string str() const;
  // The graph in DOT, levels coloured.
  std::string dot() const;
  // How it becomes a plan: the graph after each pass (engine/plan/passes.h), then the plan's instructions.
  std::string explain(const PlanOptions& options = {}) const;

 private:
  class Plans;  // that no call is using; copies of a function share them

  std::shared_ptr<Graph> graph_;
  std::vector<NodeId> inputs_, outputs_;
  Device device_ = default_device();
  std::shared_ptr<Plans> plans_;
};

using TraceFn = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;
// The inputs are named in0, in1, ..; loc is their line in messages.
Function trace(const TraceFn& fn, const std::vector<Spec>& inputs, Loc loc = Loc::current());

// ConfigError for an empty std::function; other callables are not looked at.
template <class Fn>
void require_traceable(const Fn&) {}
template <class Signature>
void require_traceable(const std::function<Signature>& fn) {
  require_function("trace", "what is to be traced", fn);
}

// The same, for one output: a callable (const vector<Tensor>&) -> Tensor.
template <class Fn>
requires std::same_as < std::invoke_result_t < Fn&, const std::vector<Tensor>
& >, Tensor > Function trace(Fn&& fn, const std::vector<Spec>& inputs, Loc loc = Loc::current()) {
  require_traceable(fn);
  return trace(TraceFn([&](const std::vector<Tensor>& in) { return std::vector<Tensor>{fn(in)}; }), inputs,
               loc);
}

// trace(fn, spec, spec, ...) for a callable (Tensor, Tensor, ...) -> Tensor or vector<Tensor>.
template <class Fn, class... S>
requires(sizeof...(S) > 0 && (std::same_as<std::remove_cvref_t<S>, Spec> && ...)) Function
    trace(Fn&& fn, const S&... specs) {
  require_traceable(fn);
  return trace(TraceFn([&](const std::vector<Tensor>& in) -> std::vector<Tensor> {
                 return [&]<std::size_t... I>(std::index_sequence<I...>)->std::vector<Tensor> {
                   return {fn(in[I]...)};
                 }
                 (std::index_sequence_for<S...>{});
               }),
               std::vector<Spec>{specs...}, Loc{});
}

// The numbers behind t, now: runs what t needs. Inputs must have values (eager graph), or there must be none:
// GraphError inside of a trace, where there are no numbers yet.
Array eval(Tensor t);
std::vector<Array> eval(std::span<const Tensor> ts);

}  // namespace nestgrad
