// The dual form, derived (FORMS: state law W_t = W + sum z[t,s] G_s with G_s = a_s' b_s).
//
//   rows q' W_t   =  q' W + (z o q' A') B        for each use of a matrix weight (o: elementwise)
//   row weight    =  w + z B
//   end of batch  =  W + (A o z_last')' B
//
// q' is the activation that the rewritten learner has already computed, so depth takes care of itself.
#include <fmt/format.h>

#include "autograd/grad.h"
#include "ttt/form.h"
#include "ttt/trace.h"

namespace nestgrad::ttt {

namespace {

Shape spread_shape(const Tensor& w, const Tensor& rows) {
  Shape shape = w.shape();
  shape[shape.size() - 2] = rows.dim(-2);
  return shape;
}

Tensor product(Tensor rows, Tensor w, bool transposed) { return matmul(rows, w, {false, transposed}); }

// Re-emits a traced function with every token reading its own weights.
Tensor read(const LearnerTrace& trace, const Weights& w, const Gradients& g, Tensor z,
            std::span<const Tensor> rows) {
  return trace.inlined(rows, {.use =
                                  [&](const Use& use, Tensor x) {
                                    Tensor y = product(x, w.at(use.weight).value, use.transposed);
                                    if (!z.defined()) return y;
                                    for (const Gradient& f : g) {
                                      if (f.weight != use.weight) continue;
                                      const Tensor in = use.transposed ? f.b : f.a,
                                                   out = use.transposed ? f.a : f.b;
                                      y = y + matmul(z * matmul(x, in, {false, true}), out);
                                    }
                                    return y;
                                  },
                              .spread =
                                  [&](std::size_t weight) {
                                    const Tensor value = w.at(weight).value;
                                    Tensor y = broadcast_to(value, spread_shape(value, rows[0]));
                                    if (!z.defined()) return y;
                                    for (const Gradient& f : g)
                                      if (f.weight == weight) y = y + matmul(z, f.b);
                                    return y;
                                  }});
}

}  // namespace

Gradients DualForm::gradients(const Weights& w, Tensor k, Tensor v) const {
  const Scope scope("inner gradient");
  const LearnerTrace trace = LearnerTrace::of_loss(learner_, w, k.spec(), v.spec());
  // Each use of a weight gets a name of its own (probe), so that the derivative sees this use and no other
  // path.
  struct Probed {
    Use use;
    Tensor rows, value;
  };
  std::vector<Probed> probed;
  const Tensor rows[] = {k, v};
  const Tensor loss = trace.inlined(
      rows, {.use =
                 [&](const Use& use, Tensor x) {
                   probed.push_back({use, x, probe(product(x, w.at(use.weight).value, use.transposed))});
                   return probed.back().value;
                 },
             .spread =
                 [&](std::size_t weight) {
                   const Tensor value = w.at(weight).value;
                   probed.push_back(
                       {{-1, weight, -1, false}, {}, probe(broadcast_to(value, spread_shape(value, k)))});
                   return probed.back().value;
                 }});
  const Seed seed = seed_of_ones(loss);
  std::vector<Tensor> wrt;
  for (const Probed& p : probed) wrt.push_back(p.value);
  const std::vector<Tensor> d = pull_back(std::span(&seed, 1), wrt);

  Gradients out;
  std::vector<char> reached(w.size(), 0);
  for (std::size_t i = 0; i < probed.size(); ++i) {
    if (!d[i].defined()) continue;
    const Probed& p = probed[i];
    reached[p.use.weight] = 1;
    if (p.use.transposed) out.push_back({p.use.weight, d[i], p.rows});
    else out.push_back({p.use.weight, p.rows, d[i]});
  }
  for (std::size_t i = 0; i < w.size(); ++i)
    if (!reached[i])
      throw FormError(
          fmt::format("[dual] fast weight '{}' does not reach the inner loss, so it would never learn; "
                      "remove it, or use it in loss()",
                      w.at(i).name));
  return out;
}

Tensor DualForm::predict(const Weights& w, const Gradients& g, Tensor z, Tensor q) const {
  return read(LearnerTrace::of_predict(learner_, w, q.spec()), w, g, z, std::span(&q, 1));
}

Tensor DualForm::loss(const Weights& w, const Gradients& g, Tensor z, Tensor k, Tensor v) const {
  const Tensor rows[] = {k, v};
  return read(LearnerTrace::of_loss(learner_, w, k.spec(), v.spec()), w, g, z, rows);
}

Weights DualForm::end_state(const Weights& w, const Gradients& g, Tensor z_last) const {
  std::vector<Tensor> values = w.values();
  for (const Gradient& f : g)
    values[f.weight] = values[f.weight] + (f.a.defined() ? matmul(f.a * transpose(z_last), f.b, {true, false})
                                                         : matmul(z_last, f.b));
  return w.with(values);
}

namespace {

std::string obstacle(const Learner& learner, const Weights& w, Tensor k, Tensor v) {
  const std::string in_loss = LearnerTrace::of_loss(learner, w, k.spec(), v.spec()).obstacle();
  return in_loss.empty() ? LearnerTrace::of_predict(learner, w, k.spec()).obstacle() : in_loss;
}

}  // namespace

std::string dual_obstacle(const Learner& learner, const Weights& w, Tensor k, Tensor v) {
  try {
    return obstacle(learner, w, k, v);
  } catch (const FormError& e) {
    return e.what();
  }
}

std::unique_ptr<Form> make_form(const Learner& learner, FormChoice choice, const Weights& w, Tensor k,
                                Tensor v) {
  if (choice == FormChoice::dual || (choice == FormChoice::automatic && obstacle(learner, w, k, v).empty()))
    return std::make_unique<DualForm>(learner);
  return std::make_unique<PrimalForm>(learner);
}

}  // namespace nestgrad::ttt
