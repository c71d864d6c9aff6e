// The primal form: every token has weights of its own. Tokens become the leading axis, [tokens, batch, heads,
// ..], so that the learner sees one row per token and its outer parameters still line up with batch and
// heads.
#include <fmt/format.h>

#include <numeric>

#include "autograd/grad.h"
#include "ttt/form.h"
#include "ttt/trace.h"

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

// The weights that each token reads: [tokens, lead.., in, out].
Weights per_token(const Weights& w, const Gradients& g, Tensor z, std::int64_t tokens) {
  std::vector<Tensor> values = w.values();
  for (Tensor& value : values) {
    const auto i = static_cast<std::size_t>(&value - values.data());
    Shape each = value.shape();
    each.insert(each.begin(), tokens);
    Tensor sum = broadcast_to(value, each);
    for (const Gradient& f : g) {
      if (f.weight != i || !z.defined()) continue;
      const Tensor moved = tokens_first(matmul(z, f.b));  // [tokens, lead.., 1, in * out]
      sum = sum + reshape(moved, each);
    }
    value = sum;
  }
  return w.with(values);
}

}  // namespace

Tensor PrimalForm::loss_of(const Weights& w, Tensor k, Tensor v) const {
  const OwnLines lines;
  return learner_.loss(w, k, v);
}

Gradients PrimalForm::gradients(const Weights& w, Tensor k, Tensor v) const {
  const Scope scope("inner gradient");
  require_fit("primal", w, k.spec());
  const std::int64_t tokens = k.dim(-2);
  std::vector<Tensor> probes = per_token(w, {}, {}, tokens).values();
  for (Tensor& t : probes) t = probe(t);
  const Tensor rows = tokens_first(k);
  const Tensor loss = loss_of(w.with(probes), rows, tokens_first(v));
  Shape wanted = rows.shape();
  wanted.back() = 1;
  if (loss.shape() != wanted)
    throw FormError(fmt::format(
        "[primal] the inner loss must be per token; for {} tokens, one row each, that is {}, but it is {}",
        tokens, to_string(wanted), describe(loss)));
  const Seed seed = seed_of_ones(loss);
  const std::vector<Tensor> d = pull_back(std::span(&seed, 1), probes);
  Gradients out;
  for (std::size_t i = 0; i < d.size(); ++i) {
    if (!d[i].defined())
      throw FormError(
          fmt::format("[primal] fast weight '{}' does not reach the inner loss, so it would never learn; "
                      "remove it, or use it in loss()",
                      w.at(i).name));
    // [tokens, lead.., in, out] -> [lead.., tokens, in * out]
    const std::int64_t flat = d[i].dim(-1) * d[i].dim(-2);
    Shape shape(d[i].shape().begin(), d[i].shape().end() - 2);
    shape.insert(shape.end(), {1, flat});
    out.push_back({i, {}, tokens_back(reshape(d[i], shape))});
  }
  return out;
}

Tensor PrimalForm::predict(const Weights& w, const Gradients& g, Tensor z, Tensor q) const {
  const Weights read = per_token(w, g, z, q.dim(-2));
  const Tensor rows = tokens_first(q);
  const OwnLines lines;
  return tokens_back(learner_.predict(read, rows));
}

Tensor PrimalForm::loss(const Weights& w, const Gradients& g, Tensor z, Tensor k, Tensor v) const {
  return tokens_back(loss_of(per_token(w, g, z, k.dim(-2)), tokens_first(k), tokens_first(v)));
}

Weights PrimalForm::end_state(const Weights& w, const Gradients& g, Tensor z_last) const {
  std::vector<Tensor> values = w.values();
  for (const Gradient& f : g)
    values[f.weight] = values[f.weight] + reshape(matmul(z_last, f.b), values[f.weight].shape());
  return w.with(values);
}

}  // namespace nestgrad::ttt
