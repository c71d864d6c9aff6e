#include "ttt/forms/wy.h"

#include <fmt/format.h>

#include <map>

#include "autograd/grad.h"
#include "ops/rules.h"
#include "ttt/forms/linear.h"

namespace nestgrad::ttt {

namespace {

[[noreturn]] void refuse(const std::string& why) { throw FormError("[wy] " + why); }

// A column that every column of t equals, if t is written as one number a row, spread over the features (as
// the derivative of a sum over features is); else undefined.
Tensor column_of(Tensor t, std::map<NodeId, Tensor>& known) {
  if (t.rank() == 0 || t.dim(-1) == 1) return t;
  if (const auto at = known.find(t.id()); at != known.end()) return at->second;
  const GraphNode n = node_of(t);  // a copy: emit appends nodes
  std::vector<Tensor> in;
  for (std::size_t i = 0; i < n.inputs.size(); ++i) {
    in.push_back(column_of(input_of(t, i), known));
    if (!in.back().defined()) return {};
  }
  Shape shape = n.spec.shape;
  shape.back() = 1;
  Tensor out;
  if (n.op == &broadcast_op) out = broadcast_to(in[0], shape);
  else if (!in.empty() && is_elementwise(*n.op, input_of(t).spec(), n.spec))
    out = emit(*n.op, in, n.attrs, n.loc);
  known[t.id()] = out;
  return out;
}

}  // namespace

AffineUse affine_use(const DerivedLearner& learner, const Weights& w, Tensor k, Tensor v) {
  const LearnerTrace& trace = learner.loss(w, k.spec(), v.spec());
  trace.require_independence();
  if (!trace.obstacle().empty()) throw FormError(trace.obstacle());
  if (w.size() != 1 || w.at(0).kind != WeightKind::matrix || trace.uses().size() != 1)
    refuse(fmt::format("it needs one matrix weight with one use; there are {} weights with {} uses", w.size(),
                       trace.uses().size()));
  const Use use = trace.uses()[0];
  if (use.held) refuse("its only use is held constant");
  const Tensor rows[] = {k, v};
  AffineUse out{{}, {}, {}, use.transposed};
  // D as a function of the use's output u.
  const auto gradient_at = [&](const std::function<Tensor(Tensor x)>& value, Tensor* at) {
    const Tensor loss = trace.inlined(rows, {.use =
                                                 [&](const Use&, Tensor x) {
                                                   out.rows = x;
                                                   return *at = probe(value(x));
                                                 },
                                             .spread = {}});
    const GradSeed seed = seed_of_ones(loss);
    return pull_back(std::span(&seed, 1), std::span(at, 1))[0];
  };
  const auto output_shape = [&](Tensor x) {
    Shape shape = x.shape();
    const Tensor value = w.at(0).value;
    shape.back() = value.dim(use.transposed ? -2 : -1);
    return shape;
  };
  Tensor u;
  const Tensor d = gradient_at(
      [&](Tensor x) {
        return matmul(x, w.at(0).value, {false, use.transposed});
      },
      &u);
  if (!d.defined()) refuse("the weight does not reach the inner loss");
  out.alpha = linear_factor(d, u, [](Tensor at, const std::string& why) {
    refuse(fmt::format("the gradient is not one number a token times what the weight gives: at {}, {}",
                       describe(at), why));
  });
  if (out.alpha.defined()) {
    std::map<NodeId, Tensor> known;
    const Tensor column = column_of(out.alpha, known);
    if (!column.defined())
      refuse(fmt::format("the gradient scales each feature by a factor of its own: {}", describe(out.alpha)));
    out.alpha = column;
  }
  Tensor zero;
  out.offset = gradient_at([&](Tensor x) { return zeros(x.dtype(), output_shape(x)); }, &zero);
  return out;
}

Laws WyForm::prepare(const State& state, const Gates& gates, const Shape& lead, std::int64_t tokens,
                     Tensor position) const {
  Laws out = DualForm::prepare(state, gates, lead, tokens, position);
  out.points.push_back(gradient_points(StepLaw::of(optimizer_, state, 0, gates),
                                       StepLaw::of_gradient_point(optimizer_, state, 0, gates), lead, tokens,
                                       state.weights.at(0).value.dtype()));
  return out;
}

Factors WyForm::factors(const State& state, const Block& block, const Laws& laws) const {
  const Scope scope("inner gradient");
  const AffineUse use = affine_use(derived_, state.weights, block.k, block.v);
  Tensor d = use.offset;
  if (use.alpha.defined()) {
    const Reads& at = laws.points[0];
    Tensor pairs = use.alpha * scores(at, use.rows, use.rows);
    if (const Tensor rate = rate_of(block.gates, state.weights.at(0)); rate.defined())
      pairs = pairs * (rate.rank() ? transpose(rate) : rate);
    const Tensor right = use.alpha * base(at, state.of(0), use.rows, use.transposed) + use.offset;
    d = triangular_solve(-pairs, right, {.unit = true});
  }
  if (use.transposed) return {{0, d, use.rows, true}};
  return {{0, use.rows, d, false}};
}

}  // namespace nestgrad::ttt
