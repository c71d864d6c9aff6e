// Function: a traced program with inputs and outputs. Call it with Arrays to run it, with Tensors to inline
// it, print it, or ask it questions.
//
//   Function f = trace([](Tensor x) { return sum(square(x)); }, Spec{DType::f64, {3}});
//   Array y = f(Array::of({1, 2, 3}, {3}));
#pragma once

#include <concepts>
#include <memory>

#include "engine/graph.h"
#include "engine/plan.h"

namespace nestgrad {

class Function {
 public:
  Function() = default;
  // Takes over a graph; inputs and outputs are nodes of it.
  Function(std::shared_ptr<Graph> graph, std::vector<NodeId> inputs, std::vector<NodeId> outputs);

  const Graph& graph() const { return *graph_; }
  const std::vector<NodeId>& inputs() const { return inputs_; }
  const std::vector<NodeId>& outputs() const { return outputs_; }
  Spec input_spec(std::size_t i) const { return graph_->node(inputs_[i]).spec; }
  Spec output_spec(std::size_t i) const { return graph_->node(outputs_[i]).spec; }
  std::size_t live_nodes() const;  // nodes that the outputs need, scan bodies included

  // Runs the function; the plan is made at the first call and kept. Not thread safe: one Function, one
  // thread.
  std::vector<Array> operator()(const std::vector<Array>& inputs) const;
  template <class... A>
  requires(sizeof...(A) > 0 && (std::same_as<std::remove_cvref_t<A>, Array> && ...)) Array operator()(
      const A&... inputs) const {
    return (*this)(std::vector<Array>{inputs...}).at(0);
  }

  // Re-emits the function on tensors of the graph that is open.
  std::vector<Tensor> operator()(std::span<const Tensor> inputs) const;

  Plan plan(const PlanOptions& options = {}) const;

  // The same function, whose calls run there. Outputs of calls with all inputs on the CPU lie on the CPU too.
  Function to(Device device) const;
  const Device& device() const { return device_; }

  // One line a node: id, op, shape, level, line. Stable: equal programs print equal text.
  std::string str() const;
  // The graph in DOT, levels coloured.
  std::string dot() const;

 private:
  std::shared_ptr<Graph> graph_;
  std::vector<NodeId> inputs_, outputs_;
  Device device_ = default_device();
  mutable std::shared_ptr<Plan> plan_;
};

using TraceFn = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;
Function trace(const TraceFn& fn, const std::vector<Spec>& inputs);

// trace(fn, spec, spec, ...) for a callable (Tensor, Tensor, ...) -> Tensor or vector<Tensor>.
template <class Fn, class... S>
requires(sizeof...(S) > 0 && (std::same_as<std::remove_cvref_t<S>, Spec> && ...)) Function
    trace(Fn&& fn, const S&... specs) {
  return trace(TraceFn([&](const std::vector<Tensor>& in) -> std::vector<Tensor> {
                 return [&]<std::size_t... I>(std::index_sequence<I...>)->std::vector<Tensor> {
                   return {fn(in[I]...)};
                 }
                 (std::index_sequence_for<S...>{});
               }),
               std::vector<Spec>{specs...});
}

// The numbers behind t, now: runs what t needs. Inputs must have values (eager graph), or there must be none.
Array eval(Tensor t);
std::vector<Array> eval(std::span<const Tensor> ts);

}  // namespace nestgrad
