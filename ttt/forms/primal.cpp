// The primal form: every token has weights of its own. Tokens become the
// leading axis, [tokens, batch, heads, ..], so that the learner sees one row
// per token and its outer parameters still line up with batch and heads.
#include "ttt/forms/primal.h"

#include <fmt/format.h>

#include "autograd/grad.h"
#include "autograd/scan.h"
#include "ttt/forms/factors.h"

namespace nestgrad::ttt {

namespace {

// [lead.., tokens, dim] -> [tokens, lead.., 1, dim]
Tensor tokens_first(Tensor rows) {
  const int rank = rows.rank();
  std::vector<int> order{rank - 2};
  for (int d = 0; d < rank - 2; ++d) order.push_back(d);
  order.push_back(rank - 1);
  const Tensor moved = permute(rows, order);
  Shape shape = moved.shape();
  shape.insert(shape.end() - 1, 1);
  return reshape(moved, shape);
}

// [tokens, lead.., 1, dim] -> [lead.., tokens, dim]
Tensor tokens_back(Tensor rows) {
  const int rank = rows.rank();
  std::vector<int> order;
  for (int d = 1; d < rank - 2; ++d) order.push_back(d);
  order.insert(order.end(), {0, rank - 2, rank - 1});
  const Tensor moved = permute(rows, order);
  Shape shape = moved.shape();
  shape.erase(shape.end() - 2);
  return reshape(moved, shape);
}

// Position rates beside weights w [tokens, batch, heads, in, out]: [tokens], or of one token [batch, 1, 1, 1].
Tensor for_each_weight(Tensor position, Tensor w) {
  Shape shape(w.shape().size(), 1);
  if (position.rank() == 1) shape[0] = w.dim(0);
  else shape[1] = position.dim(0);
  return reshape(position, shape);
}

// The same weights for each token: [tokens, lead.., in, out].
Weights for_each_token(const Weights& w, std::int64_t tokens) {
  std::vector<Tensor> values = w.values();
  for (Tensor& value : values) {
    Shape each = value.shape();
    each.insert(each.begin(), tokens);
    value = broadcast_to(value, each);
  }
  return w.with(values);
}

}  // namespace

// The weights that each token finds, and those that it leaves: [tokens, lead.., in, out].
struct PrimalForm::Walk {
  Weights before, after;
  State end, unplaced;
};

BlockResult PrimalForm::run_from(const State& at, const State& running, const Block& block) const {
  require_fit("primal", at.weights, block.k.spec());
  const Walk walk = step_along(at, running, gradients(at, block), block);
  BlockResult out;
  out.next = walk.end;
  out.unplaced = walk.unplaced;
  out.output = tokens_back(derived_.answers(
      policy_.read == Policy::Read::after_write ? walk.after : walk.before, tokens_first(block.q)));
  if (!tracking()) return out;
  const Tensor k = tokens_first(block.k), v = tokens_first(block.v);
  for (const Weights& w : {for_each_token(first_, block.tokens()), walk.before, walk.after})
    out.losses.push_back(tokens_back(derived_.losses(w, k, v)));
  return out;
}

// Of each token, times its rate: [tokens, lead.., in, out].
std::vector<Tensor> PrimalForm::gradients(const State& state, const Block& block) const {
  const Scope scope("inner gradient");
  const std::int64_t tokens = block.tokens();
  const Weights at = for_each_token(gradient_point(state, block), tokens);
  std::vector<Tensor> probes = at.values();
  for (Tensor& t : probes) t = probe(t);
  const Tensor rows = tokens_first(block.k);
  const Tensor l = derived_.losses(at.with(probes).with_held(at.values()), rows, tokens_first(block.v));
  Shape wanted = rows.shape();
  wanted.back() = 1;
  if (l.shape() != wanted)
    throw FormError(fmt::format(
        "[primal] the inner loss must be per token; for {} tokens, one row each, that is {}, but it is {}",
        tokens, to_string(wanted), describe(l)));
  const GradSeed seed = seed_of_ones(l);
  std::vector<Tensor> d = pull_back(std::span(&seed, 1), probes);
  for (std::size_t i = 0; i < d.size(); ++i) {
    const std::string& name = state.weights.at(i).name;
    if (!d[i].defined()) throw not_reached("primal", name);
    if (const Tensor rate = rate_of(block.gates, state.weights.at(i)); rate.defined())
      d[i] = d[i] * (rate.rank() ? tokens_first(rate) : rate);
  }
  return optimizer_.joint(std::move(d));
}

PrimalForm::Walk PrimalForm::step_along(const State& at, const State& state, const std::vector<Tensor>& g,
                                        const Block& block) const {
  const std::int64_t tokens = block.tokens();
  Gates columns;
  for (const auto& [name, rows] : block.gates) columns[name] = transpose(tokens_first(rows));
  // With position rates the scan carries, behind the state, how far each weight has gone from where the chunk found it: that
  // is what they multiply, and so their gradient. after - w would have lost the digits of small steps.
  const std::size_t weights = state.weights.size();
  const bool placed = block.position.defined();
  std::vector<Tensor> carried = state.flat();
  const std::size_t states = carried.size();
  for (std::size_t i = 0; placed && i < weights; ++i) {
    const Tensor now = state.weights.at(i).value;
    carried.push_back(block.earlier.defined() ? now - at.weights.at(i).value
                                              : zeros(now.dtype(), now.shape()));
  }
  std::vector<Tensor> before, after;
  Tensors xs = g;
  std::vector<std::string> names;
  for (const auto& [name, column] : columns) {
    names.push_back(name);
    xs.push_back(column);
  }
  const ScanResult r = scan(
      [&](const Tensors& carry, const Tensors& x) -> StepOutput {
        Gates now;
        for (std::size_t i = 0; i < names.size(); ++i) now[names[i]] = x[weights + i];
        const State s = state.with(std::span(carry).first(states));
        StepOutput step;
        std::vector<Tensor> ways;
        for (std::size_t i = 0; i < weights; ++i) {
          Tensor moved;
          for (const Tensor& t :
               optimizer_.step(s.of(i), x[i], now, s.weights.at(i), placed ? &moved : nullptr))
            step.carries.push_back(t);
          if (placed) ways.push_back(carry[states + i] + moved);
        }
        step.ys = placed ? std::vector(carry.begin() + static_cast<std::ptrdiff_t>(states), carry.end())
                         : s.weights.values();
        const std::vector<Tensor> gone = placed ? ways : s.with(step.carries).weights.values();
        step.ys.insert(step.ys.end(), gone.begin(), gone.end());
        step.carries.insert(step.carries.end(), ways.begin(), ways.end());
        return step;
      },
      carried, xs);
  const State unplaced = state.with(std::span(r.carries).first(states));
  State end = unplaced;
  for (std::size_t i = 0; i < weights; ++i) {
    before.push_back(r.ys[i]);
    after.push_back(r.ys[weights + i]);
  }
  if (placed) {
    const Tensor earlier =
        block.earlier.defined() ? block.earlier : pad(slice(block.position, 0, 0, tokens - 1), 0, 1, 0);
    const Weights from = for_each_token(at.weights, tokens);
    std::vector<Tensor> last;
    for (std::size_t i = 0; i < weights; ++i) {
      const Tensor w = from.at(i).value;
      before[i] = w + for_each_weight(earlier, w) * before[i];
      after[i] = w + for_each_weight(block.position, w) * after[i];
      const Tensor way =
          block.position.rank() == 1 ? slice(block.position, 0, tokens - 1, tokens) : block.position;
      last.push_back(at.weights.at(i).value + way * r.carries[states + i]);
    }
    end.weights = end.weights.with(last);
  }
  return {state.weights.with(before), state.weights.with(after), end, unplaced};
}

}  // namespace nestgrad::ttt
