#include "ttt/trace.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/rules.h"

namespace nestgrad::ttt {

void require_fit(std::string_view what, const Weights& weights, const Spec& rows) {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const FastWeight& w = weights.at(i);
    const Spec& spec = w.value.spec();
    if (spec.rank() != rows.rank() ||
        !std::equal(rows.shape.begin(), rows.shape.end() - 2, spec.shape.begin()) ||
        (w.kind == WeightKind::row && w.value.dim(-2) != 1))
      throw ShapeError(fmt::format(
          "[{}] fast weight '{}' is {}; rows are {}, so it must be [same leading axes.., {}]", what, w.name,
          to_string(spec), to_string(rows), w.kind == WeightKind::row ? "1, dim" : "in, out"));
  }
}

LearnerTrace::LearnerTrace(std::string_view what, const Weights& weights, const std::vector<Spec>& rows,
                           const std::function<Tensor(const Weights&, const std::vector<Tensor>&)>& fn)
    : what_(what) {
  Graph& parent = emit_state().graph ? *emit_state().graph : weights.at(0).value.graph();
  graph_ = std::make_shared<Graph>(GraphOptions{.parent = &parent, .hoist = false});
  const GraphScope scope(*graph_);
  require_fit(what, weights, rows[0]);
  const Shape& lead = rows[0].shape;
  std::vector<Tensor> values, data;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const FastWeight& w = weights.at(i);
    Spec spec = w.value.spec();
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
  const OwnLines lines;
  out_ = graph_->lift(fn(weights.with(values), data));
}

LearnerTrace LearnerTrace::of_loss(const Learner& learner, const Weights& weights, const Spec& k,
                                   const Spec& v) {
  LearnerTrace trace("loss", weights, {k, v}, [&](const Weights& w, const std::vector<Tensor>& rows) {
    return learner.loss(w, rows[0], rows[1]);
  });
  Shape wanted = k.shape;
  wanted.back() = 1;
  if (const Spec& got = trace.graph_->node(trace.out_).spec; got.shape != wanted)
    throw FormError(
        fmt::format("[loss] the inner loss must be per token, {}; it is {} at {}. Sum over features only, "
                    "with the axis kept",
                    to_string(wanted), to_string(got), describe(trace.graph_->tensor(trace.out_))));
  trace.prove_independence();
  trace.find_uses();
  return trace;
}

LearnerTrace LearnerTrace::of_predict(const Learner& learner, const Weights& weights, const Spec& x) {
  LearnerTrace trace("predict", weights, {x}, [&](const Weights& w, const std::vector<Tensor>& rows) {
    return learner.predict(w, rows[0]);
  });
  trace.prove_independence();
  trace.find_uses();
  return trace;
}

std::vector<std::pair<NodeId, Flow>> LearnerTrace::token_seeds() const {
  const Flow along = Flow::along(graph_->node(rows_[0]).spec.rank() - 2);
  std::vector<std::pair<NodeId, Flow>> seeds;
  for (NodeId id : rows_) seeds.emplace_back(id, along);
  for (std::size_t i = 0; i < weights_.size(); ++i)
    if (kinds_[i] == WeightKind::row) seeds.emplace_back(weights_[i], along);
  return seeds;
}

void LearnerTrace::prove_independence() const {
  const Shape& lead = graph_->node(rows_[0]).spec.shape;
  const int rank = static_cast<int>(lead.size());
  const auto prove = [&](int axis, std::string_view noun, const std::vector<std::pair<NodeId, Flow>>& seeds) {
    const std::vector<Flow> flows = follow(graph_->nodes(), seeds);
    const Flow& f = flows[static_cast<std::size_t>(out_)];
    if (f.kind == Flow::Kind::along && f.axis == axis) return;
    if (f.kind == Flow::Kind::mixed)
      throw FormError(
          fmt::format("[{}] {} are not independent: at {}, {}. Each needs a loss and a prediction of its own",
                      what_, noun, describe(graph_->tensor(f.culprit)), f.why));
    throw FormError(fmt::format("[{}] the result does not follow the {}: {}", what_, noun,
                                describe(graph_->tensor(out_))));
  };
  prove(rank - 2, "tokens", token_seeds());
  // Leading axes (batch, heads): a leaf that has this axis, counted from the end, has a slice for each
  // member.
  for (int axis = 0; axis < rank - 2; ++axis) {
    if (lead[static_cast<std::size_t>(axis)] == 1) continue;
    std::vector<std::pair<NodeId, Flow>> members;
    for (NodeId id = 0; id < graph_->size(); ++id) {
      const Node& n = graph_->node(id);
      const int at = axis - (rank - n.spec.rank());
      if (n.inputs.empty() && at >= 0 && n.spec.shape[static_cast<std::size_t>(at)] > 1)
        members.emplace_back(id, Flow::along(at));
    }
    prove(axis, "sequences and heads", members);
  }
}

void LearnerTrace::find_uses() {
  const int rank = graph_->node(rows_[0]).spec.rank();
  const std::vector<Flow> flows = follow(graph_->nodes(), token_seeds());

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
                        !alias[static_cast<std::size_t>(rows)] && flow.kind == Flow::Kind::along &&
                        flow.axis == rank - 2 && graph_->node(rows).spec.rank() == rank;
      if (!fits) {
        obstacle_ = fmt::format(
            "[{}] fast weight '{}' is used in {}: only rows x W and rows x W' have a factored gradient. "
            "Use the primal form, or declare the weight as a row",
            what_, names_[w->weight], describe(graph_->tensor(id)));
        return;
      }
      uses_.push_back({id, w->weight, rows, w->transposed != (n.attrs.ints[1] != 0)});
    }
  }
}

Tensor LearnerTrace::inlined(std::span<const Tensor> rows, const Rewrite& rewrite) const {
  if (!obstacle_.empty()) throw FormError(obstacle_);
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
