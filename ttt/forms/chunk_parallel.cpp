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

// A loop of one step over all chunks: what it does is independent for every chunk of every member, so that a plan
// runs it slice by slice, what is between in the cache, on as many threads as there are. xs and what fn gives:
// [1, chunks, batch, heads, ..], where they are given to the loop, and taken from it.
Tensors at_once(const Tensors& xs, const std::function<Tensors(const Tensors&)>& fn) {
  return scan([&](const Tensors&, const Tensors& x) -> StepOutput { return {{}, fn(x)}; }, {}, xs).ys;
}
Tensor given(Tensor chunks) {
  Shape shape = chunks.shape();
  shape.insert(shape.begin(), 1);
  return reshape(chunks, shape);
}
Tensor taken(Tensor chunks) {
  return reshape(chunks, Shape(chunks.shape().begin() + 1, chunks.shape().end()));
}
// Rows of a block, [batch, heads, time, ..], for a loop to read where they lie; and back.
Tensor given_rows(Tensor x, std::int64_t chunks) {
  const Tensor parts = reshape(x, {x.dim(0), x.dim(1), 1, chunks, x.dim(2) / chunks, x.dim(3)});
  return permute(parts, {2, 3, 0, 1, 4, 5});
}
Tensor taken_rows(Tensor x) {
  const Tensor parts = permute(x, {2, 3, 0, 1, 4, 5});
  return reshape(parts, {x.dim(2), x.dim(3), x.dim(1) * x.dim(4), x.dim(5)});
}

// Gates that are among the tensors of a loop, from `next` on.
Gates gates_at(const Gates& like, Tensors::const_iterator next) {
  return each(like, [&](Tensor) { return *next++; });
}
void append(Tensors& to, const Gates& gates) {
  for (const auto& [name, gate] : gates) to.push_back(gate);
}
Gates given(const Gates& columns) {
  return each(columns, [](Tensor column) { return given(column); });
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

// What each chunk adds to a weight: the step at W = 0. `slots` [chunks, ..]: what they are before each.
Tensor ChunkParallelForm::added(const State& start, std::size_t weight, const Tensors& slots, Tensor gradient,
                                const Gates& columns) const {
  const Tensor w = start.of(weight)[0];
  Tensors states{over_chunks(zeros(w.dtype(), w.shape()), gradient.dim(0))};
  states.insert(states.end(), slots.begin(), slots.end());
  return optimizer_.step(states, gradient, columns, start.weights.at(weight))[0];
}

// Of each weight what the chunks add to it, or the gradient where slots have to be known first:
// [chunks, batch, heads, in, out].
Tensors ChunkParallelForm::of_chunks(const State& start, const Block& block, const Gates& columns) const {
  const std::int64_t chunks = block.tokens() / policy_.chunk;
  const auto rows = [&](Tensor x) { return given_rows(x, chunks); };
  Tensors xs{rows(block.k), rows(block.v)};
  append(xs, each(block.gates, rows));
  append(xs, given(columns));
  Tensors made = at_once(xs, [&](const Tensors& x) {
    Block own;
    own.k = own.q = x[0], own.v = x[1];
    own.gates = gates_at(block.gates, x.begin() + 2);
    const Gates own_columns = gates_at(columns, x.begin() + 2 + std::ssize(own.gates));
    std::vector<Tensor> values = start.weights.values();
    for (Tensor& value : values) value = over_chunks(value, chunks);
    // At the first weights, as no factor depends on them.
    Tensors g = gradients(start.weights.with(values), own);
    for (std::size_t w = 0; w < g.size(); ++w)
      if (start.of(w).size() == 1) g[w] = added(start, w, {}, g[w], own_columns);
    return g;
  });
  for (Tensor& each : made) each = taken(each);
  return made;
}

// made: as of_chunks() says. columns [chunks, batch, heads, 1 or in, 1].
ChunkParallelForm::History ChunkParallelForm::history(const State& start, std::size_t weight, Tensor made,
                                                      const Gates& columns) const {
  const std::int64_t chunks = made.dim(0);
  const FastWeight& own = start.weights.at(weight);
  const std::vector<Tensor> states = start.of(weight);
  std::vector<Tensor> ends;
  // What the slots are before each chunk: a short scan, if there are any.
  if (states.size() > 1) {
    const Tensor none = zeros(states[0].dtype(), states[0].shape());
    Tensors xs{made};
    append(xs, columns);
    const ScanResult r = scan(
        [&](const Tensors& carry, const Tensors& x) -> StepOutput {
          std::vector<Tensor> s{none};
          s.insert(s.end(), carry.begin(), carry.end());
          const std::vector<Tensor> next = optimizer_.step(s, x[0], gates_at(columns, x.begin() + 1), own);
          return {Tensors(next.begin() + 1, next.end()), carry};
        },
        Tensors(states.begin() + 1, states.end()), xs);
    ends = r.carries;
    xs.insert(xs.end(), r.ys.begin(), r.ys.end());
    for (Tensor& x : xs) x = given(x);
    const Tensors all = at_once(xs, [&](const Tensors& x) -> Tensors {
      const auto slots = x.begin() + 1 + std::ssize(columns);
      return {added(start, weight, {slots, x.end()}, x[0], gates_at(columns, x.begin() + 1))};
    });
    made = taken(all[0]);
  }
  // The weights before and after each chunk.
  const Tensor p = own_factor(optimizer_, start, weight, columns);
  Tensors xs{made};
  const bool varies = p.rank() > 2 && p.rank() == made.rank() && p.dim(0) == chunks;
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

BlockResult ChunkParallelForm::run(const State& start, const Block& block, const Laws& laws) const {
  const std::int64_t chunks = block.tokens() / policy_.chunk;
  if (chunks == 1) return FactoredChunkForm::run(start, block, laws);
  const Scope scope("chunk-parallel form");
  const Block blocks = split_chunks(block, chunks);
  const Gates columns = chunk_gates(blocks.gates);
  const Tensors made = of_chunks(start, block, columns);
  std::vector<Tensor> before_each, after_each, flat;
  for (std::size_t w = 0; w < made.size(); ++w) {
    const History h = history(start, w, made[w], columns);
    before_each.push_back(h.before);
    after_each.push_back(h.after);
    flat.insert(flat.end(), h.end.begin(), h.end.end());
  }
  const bool reads_after = policy_.read == Policy::Read::after_write;
  Tensors xs;
  for (const Tensor& w : reads_after ? after_each : before_each) xs.push_back(given(w));
  xs.push_back(given_rows(block.q, chunks));
  BlockResult out;
  out.output = taken_rows(at_once(xs, [&](const Tensors& x) -> Tensors {
    return {predict(start.weights.with(Tensors(x.begin(), x.end() - 1)), x.back())};
  })[0]);
  out.next = start.with(flat);
  if (tracking()) {
    std::vector<Tensor> first = first_.values();
    for (Tensor& value : first) value = over_chunks(value, chunks);
    for (const std::vector<Tensor>& w : {first, before_each, after_each})
      out.losses.push_back(join_chunks(loss(start.weights.with(w), blocks.k, blocks.v)));
  }
  return out;
}

}  // namespace nestgrad::ttt
