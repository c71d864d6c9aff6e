// Graph: an append-only list of nodes. A node is one use of an op, and knows where it came from.
//
//   Graph g;                                  // lazy: nodes are only recorded
//   Tensor x = g.input(Spec{DType::f64, {3}}, "x");
//   Tensor y = sum(x * x);                    // appends to g
//   Tensor dx = grad(y, x);                   // appends more
//
// A graph is used by one thread at a time. Tensors of a destroyed graph are detected, never dereferenced.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "engine/core/context.h"
#include "engine/core/op.h"
#include "engine/core/shared_nodes.h"

namespace nestgrad {

struct GraphNode {
  const Op* op = nullptr;
  Attrs attrs;
  std::vector<NodeId> inputs;
  Spec spec;
  int level = 0;  // 0: the program as written; n+1: emitted by a gradient of something that contains level n
  NodeId vjp_of = -1;  // the node whose derivative emitted this one
  int region = 0;      // checkpoint region, 0: none
  bool of_numbers = false;  // made of constants alone, as zeros() and eye() are: of no input and no probe()
  Loc loc;             // the user's line
  ScopeName scope;     // names of enclosing scopes, joined by '/'
  Array value;         // eager graphs only
};

std::string input_name(const GraphNode& n);  // empty if n is not an input
inline const Array& literal_of(const GraphNode& n) { return n.attrs.as<ConstantAttrs>().literal; }

enum class GraphMode { lazy, eager };

// Options of a graph; most graphs are made by trace().
struct GraphOptions {
  GraphMode mode = GraphMode::lazy;
  Graph* parent = nullptr;    // its tensors may be used here: lift() makes an input for each, a capture
  bool hoist = true;          // ops that need only an ancestor's tensors are appended there
  bool simplify = false;      // apply Op::simplify at append; only plans do
  bool round = true;          // simplify may change rounding, or the sign of a zero
  bool stack = true;          // simplify may make one product of many, which cannot be cut into slices
  bool check_finite = false;  // eager only: throw ValueError at the first op whose output is not finite
  bool share = true;          // equal calls are one node
};

// A derivative that was taken in this graph, of a node of it, with respect to a tensor of an ancestor.
struct InnerDerivative {
  NodeId of;
  Tensor wrt;
};

// A tensor of another graph, and the input of this one that it feeds.
struct Capture {
  Tensor outer;
  NodeId id;
};

class Graph {
 public:
  explicit Graph(GraphMode mode = GraphMode::lazy) : Graph(GraphOptions{.mode = mode}) {}
  explicit Graph(GraphOptions options);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  Tensor input(Spec spec, std::string name = "", Loc loc = Loc::current());
  // The numbers are the graph's own: writing to the caller's array afterwards changes nothing here.
  Tensor input(Array value, std::string name = "", Loc loc = Loc::current());  // eager graphs
  Tensor constant(Array value, Loc loc = Loc::current());
  // known: the spec of a copy, which need not be inferred again.
  Tensor append(const Op& op, std::span<const Tensor> inputs, Attrs, Loc, const Spec* known = nullptr);

  // This graph's node for t: t itself, a copy of a constant, or a captured input. GraphError if t is foreign.
  NodeId lift(Tensor t);

  const GraphNode& node(NodeId id) const { return nodes_[static_cast<std::size_t>(id)]; }
  GraphNode& node(NodeId id) { return nodes_[static_cast<std::size_t>(id)]; }
  const std::deque<GraphNode>& nodes() const { return nodes_; }
  NodeId size() const { return static_cast<NodeId>(nodes_.size()); }
  Tensor tensor(NodeId id) { return {*this, id}; }
  const std::vector<NodeId>& inputs() const { return inputs_; }
  const std::vector<Capture>& captures() const { return captures_; }
  // Of inputs of a scan's body: the outer tensor that each starts from (a carry) or is cut from (a sequence).
  // With it a derivative finds what depends on what.
  void note_source(Tensor outer, Tensor input) { sources_.push_back({outer, input.id()}); }
  const std::vector<Capture>& sources() const { return sources_; }
  // With these a scan finds derivatives that miss a path through the steps before (autograd/missed_paths.h).
  void note_derivative(InnerDerivative d) { inner_derivatives_.push_back(d); }
  const std::vector<InnerDerivative>& inner_derivatives() const { return inner_derivatives_; }
  const GraphOptions& options() const { return options_; }
  Graph* parent() const { return options_.parent; }
  int depth() const { return depth_; }
  bool descends_from(const Graph& other) const;  // true of itself

 private:
  friend class Tensor;
  NodeId push(GraphNode node);
  void run(GraphNode& node);

  GraphOptions options_;
  std::uint32_t serial_;
  int depth_ = 0;
  std::deque<GraphNode> nodes_;
  std::vector<NodeId> inputs_;
  std::vector<Capture> captures_;
  std::vector<Capture> sources_;
  std::vector<InnerDerivative> inner_derivatives_;
  SharedNodes shared_;
};

// Appends one use of an op to the open graph or, where that hoists, to the outermost ancestor with all inputs.
// GraphError for tensors of other graphs.
Tensor emit(const Op& op, std::span<const Tensor> inputs, Attrs attrs = {}, Loc loc = Loc::current());
Tensor emit(const Op& op, std::initializer_list<Tensor> inputs, Attrs attrs = {}, Loc loc = Loc::current());

// GraphError where one of them names nothing, or something of a graph that is gone: "[scan] carry 1 names nothing (at ..)".
void check_defined(std::string_view rule, std::string_view what, std::span<const Tensor> values, Loc loc);

// GraphError where a body inside this graph would be nested too deep: plans and derivatives call themselves for a body in a body.
void check_nesting(std::string_view rule, const Graph& graph, Loc loc);

Tensor constant(Array value, Loc loc = Loc::current());
Tensor constant(double value, DType dtype, Loc loc = Loc::current());
// The operand as a tensor; a number becomes a constant of the type of the tensor `like`, in its graph.
Tensor as_tensor(const Operand& operand, const Operand& like);

int new_region();  // for GraphNode::region: a number that no other checkpoint region of the process has

extern const Op input_op;
extern const Op constant_op;

// %12 = matmul f32[4,4] in layers.0 (file.cpp:31), %0 = input 'w' f32[4] (file.cpp:9)
std::string describe(Tensor t);
std::string describe(const Loc& loc);  // file.cpp:31

}  // namespace nestgrad
