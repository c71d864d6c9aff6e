#include "ttt/trace.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/attrs.h"
#include "ops/rules.h"
#include "ttt/one_text.h"

namespace nestgrad::ttt {

bool mentions(Tensor y, Tensor x) {
  if (!y.defined() || &y.graph() != &x.graph()) return false;
  std::vector<NodeId> todo{y.id()};
  std::vector<char> seen(static_cast<std::size_t>(y.id()) + 1, 0);
  while (!todo.empty()) {
    const NodeId id = todo.back();
    todo.pop_back();
    if (id == x.id()) return true;
    if (id < x.id() || seen[static_cast<std::size_t>(id)]++) continue;
    for (NodeId in : y.graph().node(id).inputs) todo.push_back(in);
  }
  return false;
}

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
    : what_(what), scope_(context().emit.scope.str()) {
  Graph& parent = context().emit.graph ? *context().emit.graph : weights.at(0).value.graph();
  graph_ = std::make_shared<Graph>(GraphOptions{.parent = &parent, .hoist = false});
  const GraphScope scope(*graph_);
  require_fit(what, weights, rows[0]);
  const Shape& lead = rows[0].shape;
  std::vector<Tensor> values, held, data;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const FastWeight& w = weights.at(i);
    Spec spec = w.value.spec();
    if (w.kind == WeightKind::row) spec.shape[lead.size() - 2] = lead[lead.size() - 2];
    const Loc loc = w.value.graph().node(w.value.id()).loc;
    values.push_back(graph_->input(spec, w.name, loc));
    weights_.push_back(values.back().id());
    held.push_back(graph_->input(spec, "held " + w.name, loc));
    held_.push_back(held.back().id());
    names_.push_back(w.name);
    kinds_.push_back(w.kind);
  }
  for (const Spec& spec : rows) {
    data.push_back(graph_->input(spec, rows.size() == 1 ? "x" : data.empty() ? "k" : "v", Loc{}));
    rows_.push_back(data.back().id());
  }
  const OwnLines lines;
  out_ = graph_->lift(fn(weights.with(values).with_held(held), data));
}

void require_loss_per_token(Tensor loss, const Shape& rows) {
  Shape wanted = rows;
  wanted.back() = 1;
  if (loss.shape() == wanted) return;
  throw FormError(fmt::format(
      "[loss] the inner loss must be per token, {}; it is {} at {}. Sum over features only, with the axis kept",
      to_string(wanted), to_string(loss.spec()), describe(loss)));
}

LearnerTrace LearnerTrace::of_loss(const Learner& learner, const Weights& weights, const Spec& k,
                                   const Spec& v) {
  LearnerTrace trace("loss", weights, {k, v}, [&](const Weights& w, const std::vector<Tensor>& rows) {
    return learner.loss(w, rows[0], rows[1]);
  });
  require_loss_per_token(trace.output_tensor(), k.shape);
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

bool LearnerTrace::is_of(const std::vector<Spec>& rows) const {
  return std::ranges::equal(rows_, rows, {}, [&](NodeId id) { return graph_->node(id).spec; });
}

std::vector<std::pair<NodeId, AxisFlow>> LearnerTrace::token_seeds() const {
  const AxisFlow along = AxisFlow::along(graph_->node(rows_[0]).spec.rank() - 2);
  std::vector<std::pair<NodeId, AxisFlow>> seeds;
  for (NodeId id : rows_) seeds.emplace_back(id, along);
  for (std::size_t i = 0; i < weights_.size(); ++i)
    if (kinds_[i] == WeightKind::row)
      for (NodeId id : {weights_[i], held_[i]}) seeds.emplace_back(id, along);
  return seeds;
}

void LearnerTrace::prove_independence() {
  const Shape& lead = graph_->node(rows_[0]).spec.shape;
  const int rank = static_cast<int>(lead.size());
  const auto obstacle = [&](int axis, std::string_view noun,
                            const std::vector<std::pair<NodeId, AxisFlow>>& seeds,
                            bool positional) -> std::string {
    const std::vector<AxisFlow> flows =
        follow(graph_->nodes(), seeds, {.positional = positional, .rules = true});
    const AxisFlow& f = flows[static_cast<std::size_t>(out_)];
    if (f.kind == AxisFlow::Kind::along && f.axis == axis) return {};
    if (f.kind == AxisFlow::Kind::mixed)
      return fmt::format(
          "[{}] {} are not independent: at {}, {}. Each needs a loss and a prediction of its own", what_,
          noun, describe(graph_->tensor(f.culprit)), f.why);
    return fmt::format("[{}] the result does not follow the {}: {}", what_, noun,
                       describe(graph_->tensor(out_)));
  };
  mixing_ = obstacle(rank - 2, "tokens", token_seeds(), false);
  // Leading axes (batch, heads): an input that has this
  // axis, counted from the end, has a slice for each member.
  for (int axis = 0; axis < rank - 2 && members_.empty(); ++axis) {
    if (lead[static_cast<std::size_t>(axis)] == 1) continue;
    members_ = obstacle(axis, "sequences and heads", member_seeds(graph_->nodes(), axis, rank), true);
  }
}

std::string LearnerTrace::why_differs(const LearnerTrace& other) const {
  const auto is_alone = [](const LearnerTrace& t) { return t.graph_->tensor(t.rows_[0]).dim(-2) == 1; };
  // Of one token alone nothing can be said: it meets no other.
  if (mixing_.empty() != other.mixing_.empty())
    return is_alone(*this) || is_alone(other) ? "" : mixing_ + other.mixing_;
  if (members_.empty() != other.members_.empty()) return members_ + other.members_;
  const std::string why =
      why_not_one_text({*graph_, {out_}}, {*other.graph_, {other.out_}}, is_alone(*this) || is_alone(other));
  return why.empty() ? "" : fmt::format("[{}] {}", what_, why);
}

void LearnerTrace::require_independence() const {
  for (const std::string& why : {mixing_, members_})
    if (!why.empty()) throw FormError(why);
}

std::vector<std::string> LearnerTrace::uses_of(std::size_t weight) const {
  std::vector<std::string> out;
  for (const Use& use : uses_)
    if (use.weight == weight) out.push_back(describe(graph_->tensor(use.node)));
  return out;
}

void LearnerTrace::find_uses() {
  const int rank = graph_->node(rows_[0]).spec.rank();
  const std::vector<AxisFlow> flows = follow(graph_->nodes(), token_seeds());

  // Which nodes are a matrix weight, or its transpose.
  struct Alias {
    std::size_t weight;
    bool transposed, held;
  };
  std::vector<std::optional<Alias>> alias(static_cast<std::size_t>(graph_->size()));
  for (std::size_t i = 0; i < weights_.size(); ++i)
    if (kinds_[i] == WeightKind::matrix) {
      alias[static_cast<std::size_t>(weights_[i])] = Alias{i, false, false};
      alias[static_cast<std::size_t>(held_[i])] = Alias{i, false, true};
    }

  for (NodeId id = 0; id < graph_->size(); ++id) {
    const GraphNode& n = graph_->node(id);
    for (std::size_t operand = 0; operand < n.inputs.size(); ++operand) {
      const auto& w = alias[static_cast<std::size_t>(n.inputs[operand])];
      if (!w) continue;
      if (transposed_input(graph_->tensor(id)).defined()) {
        alias[static_cast<std::size_t>(id)] = Alias{w->weight, !w->transposed, w->held};
        continue;
      }
      const NodeId rows = n.inputs[0];
      const AxisFlow& flow = flows[static_cast<std::size_t>(rows)];
      const bool fits = n.op == &matmul_op && operand == 1 && !n.attrs.as<MatmulAttrs>().a &&
                        !alias[static_cast<std::size_t>(rows)] && flow.kind == AxisFlow::Kind::along &&
                        flow.axis == rank - 2 && graph_->node(rows).spec.rank() == rank;
      if (!fits) {
        obstacle_ = fmt::format(
            "[{}] fast weight '{}' is used in {}: only rows x W and rows x W' have a factored gradient. "
            "Use the primal form, or declare the weight as a row",
            what_, names_[w->weight], describe(graph_->tensor(id)));
        return;
      }
      uses_.push_back({id, w->weight, rows, w->transposed != (n.attrs.as<MatmulAttrs>().b), w->held});
    }
  }
}

Tensor LearnerTrace::inlined(std::span<const Tensor> rows, const Rewrite& rewrite) const {
  require_independence();
  if (!obstacle_.empty()) throw FormError(obstacle_);
  std::vector<Tensor> made(static_cast<std::size_t>(graph_->size()));
  for (std::size_t i = 0; i < rows_.size(); ++i) made[static_cast<std::size_t>(rows_[i])] = rows[i];
  for (std::size_t i = 0; i < weights_.size(); ++i)
    if (kinds_[i] == WeightKind::row) {
      made[static_cast<std::size_t>(weights_[i])] = rewrite.spread(i, false);
      made[static_cast<std::size_t>(held_[i])] = rewrite.spread(i, true);
    }
  for (const Capture& c : graph_->captures()) made[static_cast<std::size_t>(c.id)] = c.outer;

  ContextGuard guard;
  const std::string here = context().emit.scope.str();
  auto next_use = uses_.begin();
  std::vector<Tensor> in;
  for (NodeId id = 0; id <= out_; ++id) {
    const GraphNode& n = graph_->node(id);
    Tensor& t = made[static_cast<std::size_t>(id)];
    if (t.defined() || n.op->kind == OpKind::input) continue;
    context().emit.loc = n.loc;
    context().emit.level = n.level;
    context().emit.scope =
        ScopeName(here + n.scope.str().substr(std::min(scope_.size(), n.scope.str().size())));
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
