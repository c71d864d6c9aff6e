#include "ttt/forms/factors.h"

#include "autograd/grad.h"
#include "ops/accumulate.h"

namespace nestgrad::ttt {

namespace {

Tensor product(Tensor rows, Tensor w, bool transposed) { return matmul(rows, w, {false, transposed}); }

Tensor spread(Tensor w, Tensor rows) {
  Shape shape = w.shape();
  shape[shape.size() - 2] = rows.dim(-2);
  return broadcast_to(w, shape);
}

// [.., a, b] -> [.., a, 1, b] and [.., 1, a, b]
Tensor as_queries(Tensor x) {
  Shape shape = x.shape();
  shape.insert(shape.end() - 1, 1);
  return reshape(x, shape);
}
Tensor as_keys(Tensor x) {
  Shape shape = x.shape();
  shape.insert(shape.end() - 2, 1);
  return reshape(x, shape);
}

}  // namespace

Factors factors_at(const DerivedLearner& learner, const Weights& at, Tensor k, Tensor v) {
  const Scope scope("inner gradient");
  const LearnerTrace& trace = learner.loss(at, k.spec(), v.spec());
  struct Probed {
    Use use;
    Tensor rows, value;
  };
  std::vector<Probed> probed;
  const Tensor rows[] = {k, v};
  const Tensor loss = trace.inlined(rows, {.use = [&](const Use& use, Tensor x) -> Tensor {
                                             const Tensor y =
                                                 product(x, at.at(use.weight).value, use.transposed);
                                             if (use.held) return y;
                                             probed.push_back({use, x, probe(y)});
                                             return probed.back().value;
                                           },
                                           .spread = [&](std::size_t weight, bool held) -> Tensor {
                                             const Tensor y = spread(at.at(weight).value, k);
                                             if (held) return y;
                                             probed.push_back({{-1, weight, -1, false, false}, {}, probe(y)});
                                             return probed.back().value;
                                           }});
  const GradSeed seed = seed_of_ones(loss);
  std::vector<Tensor> wrt;
  for (const Probed& p : probed) wrt.push_back(p.value);
  const std::vector<Tensor> d = pull_back(std::span(&seed, 1), wrt);

  Factors out;
  std::vector<char> reached(at.size(), 0);
  for (std::size_t i = 0; i < probed.size(); ++i) {
    if (!d[i].defined()) continue;
    const Probed& p = probed[i];
    reached[p.use.weight] = 1;
    if (p.use.transposed) out.push_back({p.use.weight, d[i], p.rows, true});
    else out.push_back({p.use.weight, p.rows, d[i], false});
  }
  for (std::size_t i = 0; i < at.size(); ++i)
    if (!reached[i]) throw not_reached("dual", at.at(i).name);
  return out;
}

Tensor scores(const Reads& reads, Tensor x, Tensor a) {
  if (!reads.feature_axis) return reads.z * matmul(x, a, {false, true});
  return sum(reads.z * as_queries(x) * as_keys(a), {-1});
}

Tensor base(const Reads& reads, const std::vector<Tensor>& states, Tensor x, bool transposed) {
  if (reads.keeps) return product(x, states[0], transposed);
  Tensor y;
  for (std::size_t j = 0; j < reads.c.size(); ++j) {
    if (!reads.c[j].defined()) continue;
    const Tensor part = reads.feature_axis && !transposed ? product(x * reads.c[j], states[j], false)
                                                          : reads.c[j] * product(x, states[j], transposed);
    accumulate(y, part);
  }
  return y;
}

Tensor read(const LearnerTrace& trace, const State& state, const Factors& factors,
            const std::vector<Reads>& reads, std::span<const Tensor> rows,
            const std::function<void(const Use& use, Tensor x)>& seen) {
  const auto use = [&](const Use& u, Tensor x) {
    if (seen) seen(u, x);
    const Reads& r = reads[u.weight];
    Tensor y = base(r, state.of(u.weight), x, u.transposed);
    if (!r.z.defined()) return y;
    for (const Factor& f : factors) {
      if (f.weight != u.weight) continue;
      if (!u.transposed) y = y + matmul(scores(r, x, f.a), f.b);
      else if (!r.feature_axis) y = y + matmul(scores(r, x, f.b), f.a);
      else {  // the features of z are those of the output
        const Tensor s = matmul(x, f.b, {false, true});
        Shape shape = s.shape();
        shape.push_back(1);
        y = y + sum(reshape(s, shape) * r.z * as_keys(f.a), {-2});
      }
    }
    return y;
  };
  const auto spread_out = [&](std::size_t weight, bool) {
    const Reads& r = reads[weight];
    const std::vector<Tensor> states = state.of(weight);
    Tensor y;
    if (r.keeps) y = spread(states[0], rows[0]);
    else
      for (std::size_t j = 0; j < r.c.size(); ++j) {
        if (!r.c[j].defined()) continue;
        const Tensor part = r.c[j] * states[j];
        accumulate(y, part);
      }
    if (!r.z.defined()) return y;
    for (const Factor& f : factors)
      if (f.weight == weight) y = y + matmul(r.z, f.b);
    return y;
  };
  return trace.inlined(rows, {.use = use, .spread = spread_out});
}

State end_state(const State& state, const Factors& factors, const std::vector<BlockLaw>& laws) {
  std::vector<Tensor> flat;
  for (std::size_t w = 0; w < state.weights.size(); ++w) {
    const std::vector<Tensor> states = state.of(w);
    for (const Reads& end : laws[w].end) {
      Tensor value;
      if (end.keeps) value = states[0];
      else
        for (std::size_t j = 0; j < end.c.size(); ++j) {
          if (!end.c[j].defined()) continue;
          const Tensor part = (end.feature_axis ? transpose(end.c[j]) : end.c[j]) * states[j];
          accumulate(value, part);
        }
      for (const Factor& f : factors) {
        if (f.weight != w) continue;
        if (!f.a.defined()) value = value + matmul(end.z, f.b);
        else if (!end.feature_axis) value = value + matmul(f.a * transpose(end.z), f.b, {true, false});
        else {
          Shape shape = end.z.shape();
          shape.erase(shape.end() - 3);
          value = value + matmul(f.a * reshape(end.z, shape), f.b, {true, false});
        }
      }
      flat.push_back(value);
    }
  }
  return state.with(flat);
}

}  // namespace nestgrad::ttt
