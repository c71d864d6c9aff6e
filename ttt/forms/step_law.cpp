// StepLaw, found on the trace of an optimiser's step.
#include <fmt/format.h>

#include "ops/rules.h"
#include "ttt/forms/law.h"
#include "ttt/forms/linear.h"

namespace nestgrad::ttt {

namespace {

bool is_constant_one(Tensor t) {
  const GraphNode& n = node_of(t);
  if (n.op->kind != OpKind::constant || literal_of(n).size() != 1) return false;
  return literal_of(n).cast(DType::f64).as<double>()[0] == 1.0;
}

// Rows <-> columns: [.., tokens, in] <-> [.., in, 1] for one token.
bool is_column(const Spec& spec, std::int64_t in) {
  return spec.rank() < 2 ? spec.size() == 1
                         : spec.shape.back() == 1 && (spec.shape[spec.shape.size() - 2] == 1 ||
                                                      spec.shape[spec.shape.size() - 2] == in);
}
Tensor as_rows(Tensor column) { return column.rank() < 2 ? column : transpose(column); }

// A step traced for one token, and the factors of the state and the gradient in what it makes of them, on
// rows of all tokens' gates.
class StepTrace {
 public:
  using Fn =
      std::function<std::vector<Tensor>(const std::vector<Tensor>& state, Tensor g, const Gates& gates)>;
  StepTrace(const std::vector<Tensor>& state, const Gates& rows, const Fn& fn);

  // Of out i: factor of every state and of the gradient; undefined: 0.
  const std::vector<Tensor>& terms(std::size_t i) {
    if (!follower_->follows(outs_[i])) refuse(outs_[i], "it is not linear in the state and the gradient");
    return follower_->terms(outs_[i]);
  }

 private:
  [[noreturn]] void refuse(NodeId id, const std::string& why) {
    throw FormError(fmt::format("[update] the step is not linear with one coefficient a token: at {}, {}",
                                describe_step(graph_->tensor(id)), why));
  }
  void refuse(NodeId id, LinearFollower::Why why);
  bool fits(const Spec& spec) const { return is_column(spec, weight_.shape[weight_.shape.size() - 2]); }
  Tensor coefficient(const GraphNode& n) const;

  Spec weight_;
  Tensor one_;
  std::unique_ptr<Graph> graph_;
  std::vector<NodeId> outs_;
  std::vector<Tensor> rows_;  // of every value that gates alone decide, one a token; undefined: it is none
  std::optional<LinearFollower> follower_;
};

StepTrace::StepTrace(const std::vector<Tensor>& state, const Gates& rows, const Fn& fn)
    : weight_(state[0].spec()), one_(constant(1.0, state[0].dtype())) {
  Graph& parent = context().emit.graph ? *context().emit.graph : state[0].graph();
  graph_ = std::make_unique<Graph>(GraphOptions{.parent = &parent, .hoist = false});
  std::vector<Tensor> inputs;
  Tensor g;
  Gates columns;
  {
    const GraphScope scope(*graph_);
    for (const Tensor& s : state) inputs.push_back(graph_->input(s.spec()));
    g = graph_->input(weight_, "gradient");
    for (const auto& [name, value] : rows) {
      Spec spec = value.spec();
      spec.shape[spec.shape.size() - 2] = spec.shape.back();
      spec.shape.back() = 1;
      columns[name] = graph_->input(spec, name);
    }
    const OwnLines lines;
    for (const Tensor& t : fn(inputs, g, columns)) outs_.push_back(graph_->lift(t));
  }
  rows_.resize(static_cast<std::size_t>(graph_->size()));
  const auto at = [&](NodeId id) -> Tensor& { return rows_[static_cast<std::size_t>(id)]; };
  follower_.emplace(*graph_, state.size() + 1,
                    LinearFollower::Rules{
                        .operand = [this, at](NodeId id) { return follower_->follows(id) ? one_ : at(id); },
                        .offsets = false,
                        .refuse = [this](NodeId id, LinearFollower::Why why) { refuse(id, why); }});
  for (std::size_t i = 0; i < state.size(); ++i)
    if (state[i].spec() == weight_) follower_->start(inputs[i].id(), i, one_);
  follower_->start(g.id(), state.size(), one_);
  for (const auto& [name, value] : rows) at(columns[name].id()) = value;
  for (const Capture& c : graph_->captures())
    if (fits(c.outer.spec())) at(c.id) = as_rows(c.outer);
  for (NodeId id = 0; id < graph_->size(); ++id)
    if (graph_->node(id).op->kind != OpKind::input && !follower_->visit(id))
      at(id) = coefficient(graph_->node(id));
}

void StepTrace::refuse(NodeId id, LinearFollower::Why why) {
  switch (why) {
    case LinearFollower::Why::foreign:
      refuse(id,
             "a value that is no gate joins the state (a constant offset, or a factor per weight element)");
    case LinearFollower::Why::mixed:
      refuse(id, "it mixes the elements of the weight");
    case LinearFollower::Why::nonlinear:
      refuse(id, fmt::format("'{}' is a nonlinear function of the state", graph_->node(id).op->name));
    case LinearFollower::Why::product:
      refuse(id, "it is a product of two values that depend on the state");
    case LinearFollower::Why::offset:
      refuse(id, "it adds a constant offset to the state");
  }
}

Tensor StepTrace::coefficient(const GraphNode& n) const {
  if (n.op->kind == OpKind::constant) return fits(n.spec) ? as_rows(constant(literal_of(n))) : Tensor();
  std::vector<Tensor> in;
  for (NodeId i : n.inputs) {
    in.push_back(rows_[static_cast<std::size_t>(i)]);
    if (!in.back().defined()) return {};
  }
  if (in.empty()) return {};
  if (n.op == &broadcast_op) return in[0];  // spread over the weight
  return is_elementwise(*n.op, graph_->node(n.inputs[0]).spec, n.spec) ? emit(*n.op, in, n.attrs, n.loc)
                                                                       : Tensor();
}

}  // namespace

bool StepLaw::accumulates() const { return p.size() == 1 && p[0][0].defined() && is_constant_one(p[0][0]); }

std::int64_t StepLaw::width() const {
  std::int64_t width = 1;
  const auto see = [&](const Tensor& t) {
    if (t.defined() && t.rank() > 0) width = std::max(width, t.dim(-1));
  };
  for (const auto& row : p)
    for (const Tensor& t : row) see(t);
  for (const Tensor& t : r) see(t);
  return width;
}

StepLaw StepLaw::of(const InnerOptimizer& optimizer, const State& state, std::size_t weight,
                    const Gates& gates) {
  if (optimizer.couples_weights())
    throw FormError("[update] the step is not linear: one norm over all weights couples them");
  const std::vector<Tensor> own = state.of(weight);
  StepTrace steps(own, gates, [&](const std::vector<Tensor>& s, Tensor g, const Gates& columns) {
    return optimizer.step(s, g, columns, state.weights.at(weight));
  });
  StepLaw out;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const std::vector<Tensor>& terms = steps.terms(i);
    out.p.emplace_back(terms.begin(), terms.end() - 1);
    out.r.push_back(terms.back());
  }
  return out;
}

StepLaw StepLaw::of_gradient_point(const InnerOptimizer& optimizer, const State& state, std::size_t weight,
                                   const Gates& gates) {
  const std::vector<Tensor> own = state.of(weight);
  StepTrace point(own, gates, [&](const std::vector<Tensor>& s, Tensor, const Gates& columns) {
    return std::vector<Tensor>{optimizer.gradient_point(s, columns, state.weights.at(weight))};
  });
  const std::vector<Tensor>& terms = point.terms(0);
  return {{{terms.begin(), terms.end() - 1}}, {terms.back()}};
}

}  // namespace nestgrad::ttt
