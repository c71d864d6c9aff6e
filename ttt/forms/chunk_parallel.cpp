#include "ttt/forms/chunk_parallel.h"

#include <fmt/format.h>

#include "autograd/scan.h"
#include "ttt/forms/linear.h"
#include "ttt/trace.h"

namespace nestgrad::ttt {

namespace {

Tensor over_chunks(Tensor w, std::int64_t chunks) {
  Shape shape = w.shape();
  shape.insert(shape.begin(), chunks);
  return broadcast_to(w, shape);
}

// The factor p of the weight in its own next value, found on the trace: derivative rules between the two, all
// linear.
Tensor own_factor(const InnerOptimizer& optimizer, const State& state, std::size_t weight,
                  const Gates& columns) {
  std::vector<Tensor> s = state.of(weight);
  const Tensor w = s[0] = probe(s[0]);
  const Tensor g = probe(zeros(w.dtype(), w.shape()));
  const Tensor next = optimizer.step(s, g, columns, state.weights.at(weight))[0];
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
  const std::vector<Tensor> s = state.of(weight);
  const Tensor p = own_factor(optimizer, state, weight, columns);
  const std::vector<Tensor> next =
      optimizer.step(s, zeros(s[0].dtype(), s[0].shape()), columns, state.weights.at(weight));
  for (std::size_t i = 1; i < s.size(); ++i)
    if (mentions(p, s[i]) || mentions(next[i], s[0]))
      throw FormError(fmt::format(
          "[update] the step of '{}' is not affine in the weight: what the optimiser carries ('{}') "
          "multiplies the weight, or follows it",
          state.weights.at(weight).name, state.slots[weight][i - 1].name));
}

// One weight along the chunks.
struct ChunkParallelForm::History {
  Tensor before, after;     // [chunks, batch, heads, in, out]
  std::vector<Tensor> end;  // the weight and its slots after the last chunk
};

// gradients [chunks, batch, heads, in, out], columns [chunks, batch, heads, 1 or in, 1].
ChunkParallelForm::History ChunkParallelForm::history(const State& start, std::size_t weight,
                                                      Tensor gradients, const Gates& columns) const {
  const std::int64_t chunks = gradients.dim(0);
  const FastWeight& own = start.weights.at(weight);
  const std::vector<Tensor> states = start.of(weight);
  const Tensor none = zeros(states[0].dtype(), states[0].shape());
  // What the slots are before each chunk: a short scan, if there are any.
  std::vector<Tensor> before{over_chunks(none, chunks)}, ends;
  if (states.size() > 1) {
    Tensors xs{gradients};
    for (const auto& [name, column] : columns) xs.push_back(column);
    const ScanResult r = scan(
        [&](const Tensors& carry, const Tensors& x) -> StepOutput {
          std::vector<Tensor> s{none};
          s.insert(s.end(), carry.begin(), carry.end());
          auto gate = x.begin();
          const Gates now = each(columns, [&](Tensor) { return *++gate; });
          const std::vector<Tensor> next = optimizer_.step(s, x[0], now, own);
          return {Tensors(next.begin() + 1, next.end()), carry};
        },
        Tensors(states.begin() + 1, states.end()), xs);
    before.insert(before.end(), r.ys.begin(), r.ys.end());
    ends = r.carries;
  }
  // What each chunk adds: the step at W = 0, all chunks at once.
  const Tensor added = optimizer_.step(before, gradients, columns, own)[0];
  // The weights before and after each chunk.
  const Tensor p = own_factor(optimizer_, start, weight, columns);
  Tensors xs{added};
  const bool varies = p.rank() > 2 && p.rank() == added.rank() && p.dim(0) == chunks;
  if (varies) xs.push_back(p);
  const ScanResult r = scan(
      [&](const Tensors& carry, const Tensors& x) -> StepOutput {
        const Tensor next = (varies ? x[1] : p) * carry[0] + x[0];
        return {{next}, {carry[0], next}};
      },
      {states[0]}, xs);
  History out{r.ys[0], r.ys[1], {r.carries[0]}};
  out.end.insert(out.end.end(), ends.begin(), ends.end());
  return out;
}

BlockResult ChunkParallelForm::run(const State& start, const Block& block, const Laws&) const {
  const std::int64_t chunks = block.tokens() / policy_.chunk;
  const Block blocks = split_chunks(block, chunks);
  const Scope scope("chunk-parallel form");
  const Gates columns = chunk_gates(blocks.gates);
  const auto spread = [&](const Weights& w) {
    std::vector<Tensor> values = w.values();
    for (Tensor& value : values) value = over_chunks(value, chunks);
    return w.with(values);
  };
  // Every chunk's gradient; at the first weights, as no factor depends on them.
  const std::vector<Tensor> g = gradients(spread(start.weights), blocks);
  std::vector<Tensor> before_each, after_each, flat;
  for (std::size_t w = 0; w < g.size(); ++w) {
    const History h = history(start, w, g[w], columns);
    before_each.push_back(h.before);
    after_each.push_back(h.after);
    flat.insert(flat.end(), h.end.begin(), h.end.end());
  }
  const Weights before = start.weights.with(before_each), after = start.weights.with(after_each);
  const bool reads_after = policy_.read == Policy::Read::after_write;
  BlockResult out;
  out.output = join_chunks(predict(reads_after ? after : before, blocks.q));
  out.next = start.with(flat);
  if (tracking())
    for (const Weights& w : {spread(first_), before, after})
      out.losses.push_back(join_chunks(loss(w, blocks.k, blocks.v)));
  return out;
}

}  // namespace nestgrad::ttt
