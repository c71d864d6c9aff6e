#include "ttt/trace.h"

#include <fmt/format.h>

#include <algorithm>

#include "autograd/flow.h"
#include "ops/rules.h"

namespace nestgrad::ttt {

LearnerTrace::LearnerTrace(std::string_view what, const Weights& weights, const std::vector<Spec>& rows,
                           const std::function<Tensor(const Weights&, const std::vector<Tensor>&)>& fn)
    : what_(what) {
  Graph& parent = emit_state().graph ? *emit_state().graph : weights.at(0).value.graph();
  graph_ = std::make_shared<Graph>(GraphOptions{.parent = &parent, .hoist = false});
  const GraphScope scope(*graph_);
  const Shape& lead = rows[0].shape;
  std::vector<Tensor> values, data;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const FastWeight& w = weights.at(i);
    Spec spec = w.value.spec();
    if (spec.rank() != rows[0].rank() || !std::equal(lead.begin(), lead.end() - 2, spec.shape.begin()) ||
        (w.kind == WeightKind::row && spec.shape[lead.size() - 2] != 1))
      throw ShapeError(fmt::format("[{}] fast weight '{}' is {}; rows are {}, so it must be [same leading axes.., {}]", what_, w.name,
                                   to_string(spec), to_string(rows[0]), w.kind == WeightKind::row ? "1, dim" : "in, out"));
    if (w.kind == WeightKind::row) spec.shape[lead.size() - 2] = lead[lead.size() - 2];
    values.push_back(graph_->input(spec, w.name));
    weights_.push_back(values.back().id());
    names_.push_back(w.name);
    kinds_.push_back(w.kind);
  }
  for (const Spec& spec : rows) {
    data.push_back(graph_->input(spec));
    rows_.push_back(data.back().id());
  }
  const Tensor out = fn(weights.with(values), data);
  out_ = graph_->lift(out);
}

LearnerTrace LearnerTrace::of_loss(const Learner& learner, const Weights& weights, const Spec& k, const Spec& v) {
  LearnerTrace trace("loss", weights, {k, v}, [&](const Weights& w, const std::vector<Tensor>& rows) {
    return learner.loss(w, rows[0], rows[1]);
  });
  Shape wanted = k.shape;
  wanted.back() = 1;
  if (const Spec& got = trace.graph_->node(trace.out_).spec; got.shape != wanted)
    throw FormError(fmt::format("[loss] the inner loss must be per token, {}; it is {} at {}. Sum over features only, with the axis kept",
                                to_string(wanted), to_string(got), describe(trace.graph_->tensor(trace.out_))));
  trace.prove_independence();
  trace.find_uses();
  return trace;
}

LearnerTrace LearnerTrace::of_predict(const Learner& learner, const Weights& weights, const Spec& x) {
  LearnerTrace trace("predict", weights, {x}, [&](const Weights& w, const std::vector<Tensor>& rows) { return learner.predict(w, rows[0]); });
  trace.prove_independence();
  trace.find_uses();
  return trace;
}

void LearnerTrace::prove_independence() const {
  const int rank = graph_->node(rows_[0]).spec.rank();
  const auto prove = [&](int axis, std::string_view noun, const std::vector<std::pair<NodeId, Flow>>& seeds) {
    const std::vector<Flow> flows = follow(graph_->nodes(), seeds);
    const Flow& f = flows[static_cast<std::size_t>(out_)];
    if (f.kind == Flow::Kind::along && f.axis == axis) return;
    if (f.kind == Flow::Kind::mixed)
      throw FormError(fmt::format("[{}] {} are not independent: at {}, {}", what_, noun, describe(graph_->tensor(f.culprit)), f.why));
    throw FormError(fmt::format("[{}] the result does not follow the {}: {}", what_, noun, describe(graph_->tensor(out_))));
  };
  std::vector<std::pair<NodeId, Flow>> tokens;
  for (NodeId id : rows_) tokens.emplace_back(id, Flow::along(rank - 2));
  for (std::size_t i = 0; i < weights_.size(); ++i)
    if (kinds_[i] == WeightKind::row) tokens.emplace_back(weights_[i], Flow::along(rank - 2));
  prove(rank - 2, "tokens", tokens);
  // Leading axes (batch, heads): what has that axis, counted from the end, has a slice for each member.
  for (int axis = 0; axis < rank - 2; ++axis) {
    std::vector<std::pair<NodeId, Flow>> members;
    const auto seed = [&](NodeId id) {
      const Spec& spec = graph_->node(id).spec;
      const int at = axis - (rank - spec.rank());
      if (at >= 0 && spec.shape[static_cast<std::size_t>(at)] > 1) members.emplace_back(id, Flow::along(at));
    };
    for (NodeId id : rows_) seed(id);
    for (NodeId id : weights_) seed(id);
    for (const Capture& c : graph_->captures()) seed(c.id);
    if (graph_->node(rows_[0]).spec.shape[static_cast<std::size_t>(axis)] > 1) prove(axis, "sequences and heads", members);
  }
}

void LearnerTrace::find_uses() {
  const int rank = graph_->node(rows_[0]).spec.rank();
  std::vector<std::pair<NodeId, Flow>> tokens;
  for (NodeId id : rows_) tokens.emplace_back(id, Flow::along(rank - 2));
  for (std::size_t i = 0; i < weights_.size(); ++i)
    if (kinds_[i] == WeightKind::row) tokens.emplace_back(weights_[i], Flow::along(rank - 2));
  const std::vector<Flow> flows = follow(graph_->nodes(), tokens);

  // Which nodes are a matrix weight, or its transpose.
  struct Alias {
    std::size_t weight;
    bool transposed;
  };
  std::vector<std::optional<Alias>> alias(static_cast<std::size_t>(graph_->size()));
  for (std::size_t i = 0; i < weights_.size(); ++i)
    if (kinds_[i] == WeightKind::matrix) alias[static_cast<std::size_t>(weights_[i])] = Alias{i, false};

  for (NodeId id = 0; id < graph_->size(); ++id) {
    const Node& n = graph_->node(id);
    for (std::size_t operand = 0; operand < n.inputs.size(); ++operand) {
      const auto& w = alias[static_cast<std::size_t>(n.inputs[operand])];
      if (!w) continue;
      if (transposed_input(graph_->tensor(id)).defined()) {
        alias[static_cast<std::size_t>(id)] = Alias{w->weight, !w->transposed};
        continue;
      }
      const NodeId rows = n.inputs[0];
      const Flow& flow = flows[static_cast<std::size_t>(rows)];
      const bool fits = n.op == &matmul_op && operand == 1 && n.attrs.ints[0] == 0 &&
                        !alias[static_cast<std::size_t>(rows)] && flow.kind == Flow::Kind::along && flow.axis == rank - 2 &&
                        graph_->node(rows).spec.rank() == rank;
      if (!fits)
        throw FormError(fmt::format("[{}] fast weight '{}' is used in {}: only rows x W and rows x W' have a factored gradient. "
                                    "Use the primal form, or declare the weight as a row",
                                    what_, names_[w->weight], describe(graph_->tensor(id))));
      uses_.push_back({id, w->weight, rows, w->transposed != (n.attrs.ints[1] != 0)});
    }
  }
}

Tensor LearnerTrace::inlined(std::span<const Tensor> rows, const Rewrite& rewrite) const {
  std::vector<Tensor> made(static_cast<std::size_t>(graph_->size()));
  for (std::size_t i = 0; i < rows_.size(); ++i) made[static_cast<std::size_t>(rows_[i])] = rows[i];
  for (std::size_t i = 0; i < weights_.size(); ++i)
    if (kinds_[i] == WeightKind::row) made[static_cast<std::size_t>(weights_[i])] = rewrite.spread(i);
  for (const Capture& c : graph_->captures()) made[static_cast<std::size_t>(c.id)] = c.outer;

  EmitGuard guard;
  auto next_use = uses_.begin();
  std::vector<Tensor> in;
  for (NodeId id = 0; id <= out_; ++id) {
    const Node& n = graph_->node(id);
    Tensor& t = made[static_cast<std::size_t>(id)];
    if (t.defined() || n.op->kind == OpKind::input) continue;
    emit_state().loc = n.loc;
    emit_state().level = n.level;
    emit_state().scope = n.scope;
    if (next_use != uses_.end() && next_use->node == id) {
      t = rewrite.use(*next_use, made[static_cast<std::size_t>(next_use->rows)]);
      ++next_use;
      continue;
    }
    in.clear();
    bool ready = true;  // transposes of a fast weight are left to its uses
    for (NodeId i : n.inputs) {
      in.push_back(made[static_cast<std::size_t>(i)]);
      ready = ready && in.back().defined();
    }
    if (ready) t = emit(*n.op, in, n.attrs, n.loc);
  }
  return made[static_cast<std::size_t>(out_)];
}

}  // namespace nestgrad::ttt
