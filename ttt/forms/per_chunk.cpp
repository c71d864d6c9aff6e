#include "ttt/forms/per_chunk.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "autograd/grad.h"
#include "ops/accumulate.h"

namespace nestgrad::ttt {

Tensor PerChunkForm::predict(const Weights& w, Tensor x) const {
  const Tensor out = derived_.answers(w.spread(x.dim(-2)), x);
  Shape wanted = x.shape();
  if (out.rank() == x.rank()) wanted.back() = out.dim(-1);
  if (out.shape() != wanted)
    throw FormError(fmt::format("[predict] needs a row for each token, [{}, ..]; it is {}",
                                fmt::join(x.shape().begin(), x.shape().end() - 1, ","), describe(out)));
  return out;
}

Tensor PerChunkForm::loss(const Weights& w, Tensor k, Tensor v) const {
  return derived_.losses(w.spread(k.dim(-2)), k, v);
}

std::vector<Tensor> PerChunkForm::summed_gradients(const Weights& at, const Block& block) const {
  std::vector<Tensor> probes = at.values();
  for (Tensor& t : probes) t = probe(t);
  const Weights seen = at.with(probes).spread(block.k.dim(-2)).with_held(at.spread(block.k.dim(-2)).values());
  const Tensor l = derived_.losses(seen, block.k, block.v);
  require_loss_per_token(l, block.k.shape());
  std::vector<Tensor> out;
  for (std::size_t i = 0; i < probes.size(); ++i) {
    const Tensor rate = rate_of(block.gates, at.at(i));
    const GradSeed seed = rate.defined() ? GradSeed{l, broadcast_to(rate, l.shape())} : seed_of_ones(l);
    const Tensor d = pull_back(std::span(&seed, 1), std::span(&probes[i], 1))[0];
    if (!d.defined()) throw not_reached("primal", at.at(i).name);
    out.push_back(d);
  }
  return out;
}

std::vector<Tensor> FactoredChunkForm::summed_gradients(const Weights& at, const Block& block) const {
  std::vector<Tensor> out(at.size());
  for (const Factor& f : factors_at(derived_, at, block.k, block.v)) {
    const Tensor rate = rate_of(block.gates, at.at(f.weight));
    const Tensor b = rate.defined() ? f.b * rate : f.b;
    const Tensor g = f.a.defined() ? matmul(f.a, b, {true, false}) : sum(b, {-2}, kKeep);
    accumulate(out[f.weight], g);
  }
  return out;
}

std::vector<Tensor> PerChunkForm::mean_gradients(const Weights& at, const Block& block) const {
  std::vector<Tensor> g = summed_gradients(at, block);
  if (policy_.average)
    for (Tensor& each : g) each = each * (1.0 / static_cast<double>(block.tokens()));
  return g;
}

std::vector<Tensor> PerChunkForm::gradients(const Weights& at, const Block& block) const {
  const Scope scope("inner gradient");
  return optimizer_.joint(mean_gradients(at, block));
}

State PerChunkForm::learnt(State state, const Block& block) const {
  const Gates columns = chunk_gates(block.gates);
  for (int step = 0; step < policy_.steps; ++step) {
    const std::vector<Tensor> g = gradients(gradient_point(state, block), block);
    std::vector<Tensor> flat;
    for (std::size_t i = 0; i < g.size(); ++i)
      for (const Tensor& t : optimizer_.step(state.of(i), g[i], columns, state.weights.at(i)))
        flat.push_back(t);
    state = state.with(flat);
  }
  return state;
}

BlockResult PerChunkForm::run(const State& state, const Block& block, const Laws&) const {
  BlockResult out;
  out.next = block.writes ? learnt(state, block) : state;
  const State& read = policy_.read == Policy::Read::after_write ? out.next : state;
  out.output = predict(read.weights, block.q);
  if (tracking())
    for (const Weights& w : {first_, state.weights, out.next.weights})
      out.losses.push_back(loss(w, block.k, block.v));
  return out;
}

}  // namespace nestgrad::ttt
