// Linear dependence, decided from the op table's facts: how the values of a graph depend on some of its nodes
// (the sources), as long as they do so linearly. Each op's own derivative says what it makes of a factor.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/core/graph.h"

namespace nestgrad::ttt {

// Does the op treat every element on its own, the same at every place?
bool is_elementwise(const Op& op, const Spec& first_input, const Spec& output);

// Follows the sources through the nodes of a graph, which the caller visits in order.
class LinearFollower {
 public:
  enum class Why : std::uint8_t { foreign, mixed, nonlinear, product, offset };
  struct Rules {
    // What stands for an operand in derivative rules; undefined: it may not join a source.
    std::function<Tensor(NodeId operand)> operand;
    bool offsets;  // may a value without a source be added to one that has some
    std::function<void(NodeId node, Why why)> refuse;  // must throw
  };
  LinearFollower(Graph& graph, std::size_t sources, Rules rules)
      : graph_(graph), sources_(sources), rules_(std::move(rules)) {}

  void start(NodeId node, std::size_t source, Tensor one);
  bool follows(NodeId node) const { return terms_.contains(node); }
  // The factor of each source in a node that follows some; undefined: 0.
  const std::vector<Tensor>& terms(NodeId node) const { return terms_.at(node); }
  // False if no operand of the node follows a source.
  bool visit(NodeId node);

 private:
  void check_rule(NodeId node, const GraphNode& n);
  Graph& graph_;
  std::size_t sources_;
  Rules rules_;
  std::map<NodeId, std::vector<Tensor>> terms_;
};

// The elementwise factor p in y = p x + (what does not depend on x), in the shape that it was written in (a
// number, one a row, ..); undefined if y does not depend on x. `refuse(node, why)` must throw: a node between
// them is not affine, or mixes elements.
Tensor linear_factor(Tensor y, Tensor x,
                     const std::function<void(Tensor at, const std::string& why)>& refuse);

}  // namespace nestgrad::ttt
