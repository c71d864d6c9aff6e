#include "ttt/forms/chunk_parallel.h"

#include <fmt/format.h>

#include "autograd/scan.h"
#include "ttt/forms/affine.h"
#include "ttt/trace.h"

namespace nestgrad::ttt {

namespace {

Tensor over_chunks(Tensor w, std::int64_t chunks) {
  Shape shape = w.shape();
  shape.insert(shape.begin(), chunks);
  return broadcast_to(w, shape);
}

// The factor p of the weight in its own next value, found on the trace: derivative rules between the two, all
// linear. Slots never read the weight: the optimiser's pieces are not given it.
Tensor own_factor(const InnerOptimizer& optimizer, const State& state, std::size_t weight,
                  const Gates& columns) {
  const WeightKind kind = state.weights.at(weight).kind;
  std::vector<Tensor> s = state.of(weight);
  const Tensor w = s[0] = probe(s[0]);
  const Tensor g = probe(zeros(w.dtype(), w.shape()));
  const Tensor next = optimizer.step(s, g, columns, kind)[0];
  const auto refuse = [&](Tensor at, const std::string& why) {
    throw FormError(fmt::format("[update] the step of '{}' is not affine in the weight: at {}, {}",
                                state.weights.at(weight).name, describe_step(at), why));
  };
  const Tensor p = linear_factor(next, w, refuse);
  if (!p.defined()) refuse(next, "the weight does not keep its past");
  return p;
}

}  // namespace

void require_chunk_split(const InnerOptimizer& optimizer, const State& state, std::size_t weight,
                         const Gates& columns) {
  own_factor(optimizer, state, weight, columns);
}

ChunkParallelResult run_chunks(const FormOptions& options, const State& start, const Block& blocks) {
  const Scope scope("chunk-parallel form");
  const std::int64_t chunks = blocks.k.dim(0);
  const InnerOptimizer optimizer = options.learner.optimizer();
  const PerChunkForm form(options, true);
  const Gates columns = chunk_gates(blocks.gates);  // [chunks, batch, heads, 1 or in, 1]

  // Every chunk's gradient; at the first weights, as no factor depends on them.
  std::vector<Tensor> spread;
  for (const Tensor& w : start.weights.values()) spread.push_back(over_chunks(w, chunks));
  const std::vector<Tensor> g = form.gradients(start.weights.with(spread), blocks);

  std::vector<std::string> names;
  Tensors gate_xs;
  for (const auto& [name, column] : columns) {
    names.push_back(name);
    gate_xs.push_back(column);
  }
  const auto gates_of = [&](const Tensors& x, std::size_t from) {
    Gates out;
    for (std::size_t i = 0; i < names.size(); ++i) out[names[i]] = x[from + i];
    return out;
  };

  std::vector<Tensor> before_each, after_each, flat;
  for (std::size_t w = 0; w < g.size(); ++w) {
    const WeightKind kind = start.weights.at(w).kind;
    const std::vector<Tensor> states = start.of(w);
    const Tensor none = zeros(states[0].dtype(), states[0].shape());
    // What the slots are before each chunk: a short scan, if there are any.
    std::vector<Tensor> before{over_chunks(none, chunks)}, ends;
    if (states.size() > 1) {
      Tensors xs{g[w]};
      xs.insert(xs.end(), gate_xs.begin(), gate_xs.end());
      const ScanResult r = scan(
          [&](const Tensors& carry, const Tensors& x) -> Step {
            std::vector<Tensor> s{none};
            s.insert(s.end(), carry.begin(), carry.end());
            const std::vector<Tensor> next = optimizer.step(s, x[0], gates_of(x, 1), kind);
            return {Tensors(next.begin() + 1, next.end()), carry};
          },
          Tensors(states.begin() + 1, states.end()), xs);
      before.insert(before.end(), r.ys.begin(), r.ys.end());
      ends = r.carries;
    }
    // What each chunk adds: the step at W = 0, all chunks at once.
    const Tensor added = optimizer.step(before, g[w], columns, kind)[0];
    // The weights before and after each chunk.
    const Tensor p = own_factor(optimizer, {Weights({start.weights.at(w)}), {start.slots[w]}}, 0, columns);
    Tensors xs{added};
    const bool varies = p.rank() > 2 && p.rank() == added.rank() && p.dim(0) == chunks;
    if (varies) xs.push_back(p);
    const ScanResult r = scan(
        [&](const Tensors& carry, const Tensors& x) -> Step {
          const Tensor next = (varies ? x[1] : p) * carry[0] + x[0];
          return {{next}, {carry[0], next}};
        },
        {states[0]}, xs);
    before_each.push_back(r.ys[0]);
    after_each.push_back(r.ys[1]);
    flat.push_back(r.carries[0]);
    flat.insert(flat.end(), ends.begin(), ends.end());
  }
  // [chunks, batch, heads, tokens, ..] -> [batch, heads, chunks * tokens, ..]
  const auto joined = [](Tensor x) {
    const Tensor t = permute(x, {1, 2, 0, 3, 4});
    return reshape(t, {t.dim(0), t.dim(1), t.dim(2) * t.dim(3), t.dim(4)});
  };
  const Weights before = start.weights.with(before_each), after = start.weights.with(after_each);
  const bool reads_after = options.policy.read == Policy::Read::after_write;
  ChunkParallelResult out{joined(form.predict(reads_after ? after : before, blocks.q)), start.with(flat), {}};
  if (options.first.size() > 0) {
    std::vector<Tensor> first;
    for (const Tensor& w : options.first.values()) first.push_back(over_chunks(w, chunks));
    for (const Weights& w : {options.first.with(first), before, after})
      out.losses.push_back(joined(form.loss(w, blocks.k, blocks.v)));
  }
  return out;
}

}  // namespace nestgrad::ttt
