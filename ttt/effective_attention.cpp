#include "ttt/effective_attention.h"

#include <fmt/format.h>

#include <algorithm>

#include "ttt/forms/factors.h"
#include "ttt/forms/per_chunk.h"

namespace nestgrad::ttt {

namespace {

[[noreturn]] void refuse(const std::string& why) { throw FormError("[effective attention] " + why); }

// The one use of the last layer's weight in which it learns; what holds it constant may use it besides.
Use last_use(const LearnerTrace& predict, const LearnerTrace& loss, const Weights& w) {
  for (const LearnerTrace* trace : {&predict, &loss}) {
    trace->require_independence();
    if (!trace->obstacle().empty()) throw FormError(trace->obstacle());
  }
  for (const Use& use : predict.uses()) {
    if (use.node != predict.output()) continue;
    const auto learns = [&](const Use& other) { return other.weight == use.weight && !other.held; };
    for (const LearnerTrace* trace : {&predict, &loss})
      if (std::ranges::count_if(trace->uses(), learns) != 1)
        refuse(fmt::format("the last layer's weight '{}' is used more than once", w.at(use.weight).name));
    return use;
  }
  refuse(fmt::format("the last layer is not linear and bias-free: the prediction is {}",
                     predict.describe_output()));
}

struct Run {
  const DerivedLearner& learner;
  const Views& views;
  std::int64_t time, chunk;  // chunk: at most time
  Shape lead;
  DType dtype;
  const Policy& policy() const { return learner.policy(); }
  bool reads_after() const { return policy().read == Policy::Read::after_write; }
};

// What one chunk's tokens ask, are and say, at the use of the last layer.
struct Part {
  Tensor query, key, value;
  State next;
};

Part part_of(const Run& run, const State& state, const Block& block, const Use& last) {
  const FactoredChunkForm form(run.learner, {});
  Factors factors = factors_at(run.learner, form.gradient_point(state, block), block.k, block.v);
  Part out;
  for (Factor& f : factors) {
    Tensor& derivative = f.transposed ? f.a : f.b;
    if (const Tensor rate = form.rate_of(block.gates, state.weights.at(f.weight)); rate.defined())
      derivative = derivative * rate;
    if (f.weight != last.weight) continue;
    out.key = f.transposed ? f.b : f.a;
    out.value = derivative;
  }
  // The weights that each token reads; of them only the last layer's input is wanted.
  State reading = state;
  std::vector<Reads> reads(state.weights.size());
  for (Reads& r : reads) r.keeps = true;
  if (run.learner.per_chunk()) {
    out.next = block.writes ? form.learnt(state, block) : state;
    if (run.reads_after()) reading = out.next;
    factors.clear();
  } else {
    std::vector<BlockLaw> laws;
    for (std::size_t i = 0; i < state.weights.size(); ++i) {
      laws.push_back(sum_up(StepLaw::of(run.learner.optimizer(), state, i, block.gates), run.lead,
                            block.tokens(), run.dtype, block.position));
      reads[i] = run.reads_after() ? laws[i].after : laws[i].before;
    }
    out.next = end_state(state, factors, laws);
  }
  read(run.learner.predict(state.weights, block.q.spec()), reading, factors, reads, std::span(&block.q, 1),
       [&](const Use& use, Tensor x) {
         if (use.weight == last.weight) out.query = x;
       });
  return out;
}

// 1 where a chunk begins a document, [batch, 1, chunks, 1]; undefined: nowhere.
Tensor starts_of_chunks(const Run& run) {
  if (!run.views.starts.defined()) return {};
  std::vector<Tensor> firsts;
  walk_chunks(0, run.time, run.chunk, [&](std::int64_t begin, std::int64_t) {
    firsts.push_back(slice(run.views.starts, 2, begin, begin + 1));
  });
  return concat(firsts, 2);
}

// A step per token.
Reads reads_of_tokens(const Run& run, const State& start, const Use& last) {
  const StepLaw step = StepLaw::of(run.learner.optimizer(), start, last.weight, run.views.gates);
  const BlockLaw law = sum_up(step, run.lead, run.time, run.dtype, {}, run.views.starts);
  Reads out = run.reads_after() ? law.after : law.before;
  if (!run.views.position.defined()) return out;
  // Position rates: of earlier chunks what their last token was given.
  if (!step.accumulates()) refuse("position rates with a step that is not plain descent");
  std::vector<double> same(static_cast<std::size_t>(run.time * run.time));
  std::vector<double> place;
  for (std::int64_t t = 0; t < run.time; ++t) {
    place.push_back(static_cast<double>(run.reads_after() ? t % run.chunk
                                                          : std::max<std::int64_t>(0, t % run.chunk - 1)));
    for (std::int64_t s = 0; s < run.time; ++s)
      same[static_cast<std::size_t>(t * run.time + s)] = t / run.chunk == s / run.chunk ? 1 : 0;
  }
  const Tensor own = reshape(
      gather(reshape(run.views.position, {-1, 1}), constant(Array::of(place, {run.time}, DType::i32))),
      {run.time, 1});
  Tensor factor = select(constant(Array::of(same, {run.time, run.time}, run.dtype)), own,
                         slice(run.views.position, 0, run.chunk - 1, run.chunk));
  if (out.feature_axis) factor = reshape(factor, {run.time, run.time, 1});
  out.z = out.z * factor;
  return out;
}

// A step per chunk: a law over chunks, spread over their tokens.
Reads reads_of_chunks(const Run& run, const State& start, const Use& last) {
  const std::int64_t chunks = (run.time + run.chunk - 1) / run.chunk, padded = chunks * run.chunk;
  const Gates means = each(run.views.gates, [&](Tensor rows) {
    std::vector<Tensor> parts;
    walk_chunks(0, run.time, run.chunk, [&](std::int64_t begin, std::int64_t end) {
      parts.push_back(mean(slice(rows, 2, begin, end), {-2}, kKeep));
    });
    return concat(parts, 2);
  });
  const BlockLaw law = sum_up(StepLaw::of(run.learner.optimizer(), start, last.weight, means), run.lead,
                              chunks, run.dtype, {}, starts_of_chunks(run));
  Reads out = run.reads_after() ? law.after : law.before, before = law.before;
  spread_over_tokens(out, run.chunk, true);
  spread_over_tokens(before, run.chunk, true);
  const int keys = out.feature_axis ? -2 : -1;
  if (!run.policy().writes(run.time - (padded - run.chunk), run.time)) {  // the last chunk's step is not made
    const auto last_from = [&](Tensor a, Tensor b, int axis) {
      return concat({slice(a, axis, 0, padded - run.chunk), slice(b, axis, padded - run.chunk, padded)},
                    axis);
    };
    out.z = last_from(out.z, before.z, keys - 1);
    for (std::size_t j = 0; j < out.c.size(); ++j)
      if (out.c[j].defined()) out.c[j] = last_from(out.c[j], before.c[j], -2);
  }
  out.z = slice(slice(out.z, keys, 0, run.time), keys - 1, 0, run.time);
  for (Tensor& c : out.c)
    if (c.defined()) c = slice(c, -2, 0, run.time);
  std::vector<double> weight;
  walk_chunks(0, run.time, run.chunk, [&](std::int64_t begin, std::int64_t end) {
    const double each = run.policy().average ? 1.0 / static_cast<double>(end - begin) : 1.0;
    weight.insert(weight.end(), static_cast<std::size_t>(end - begin), each);
  });
  Shape shape{run.time};
  if (out.feature_axis) shape.push_back(1);
  out.z = out.z * constant(Array::of(weight, shape, run.dtype));
  return out;
}

// What multiplies W at the start: what is left of it, and of what began as it did, as the anchor of an optimiser does. All other
// slots begin with zeros.
Tensor left_of_start(const Run& run, const Reads& reads, const FastWeight& w) {
  if (reads.keeps) return constant(1.0, run.dtype);
  FastWeight own = w;
  own.value = probe(w.value);
  const std::vector<FastWeight> slots = run.learner.optimizer().slots(own);
  Tensor left = reads.c[0];
  for (std::size_t i = 0; i < slots.size(); ++i)
    if (slots[i].value.id() == own.value.id()) left = left + reads.c[i + 1];
  return left;
}

// A matrix over all tokens has no place where its gradient would be cut, and documents begin with chunks.
void require_matrix(const Run& run) {
  const Policy& policy = run.policy();
  const std::int64_t chunks = (run.time + run.chunk - 1) / run.chunk;
  if (policy.meta == Policy::Meta::truncated && chunks > policy.horizon)
    refuse(fmt::format(
        "the meta-gradient is cut every {} chunks, and a matrix over all tokens has no cuts; its numbers are "
        "those of meta = full",
        policy.horizon));
  if (run.views.starts.defined() && run.views.alignment < run.time && run.views.alignment % run.chunk != 0)
    refuse(fmt::format("packed documents begin at multiples of {} tokens, and chunks at multiples of {}",
                       run.views.alignment, run.chunk));
}

}  // namespace

Tensor EffectiveAttention::output() const { return matmul(queries * decay, base) + matmul(matrix, values); }

EffectiveAttention effective_attention(const Learner& given, const Weights& start, const Views& given_views,
                                       const Policy& policy) {
  const Scope scope("effective attention");
  policy.check();
  Views views = given_views;
  if (policy.query_is_key) views.q = views.k;
  const Trained trained = restrict_to(given, State::start(given, start), policy.trained);
  const std::int64_t time = views.k.dim(2);
  if (views.q.dim(2) != time) refuse("queries and keys must have as many tokens");
  if (policy.steps > 1) refuse("several steps a chunk give each token several values");
  const DerivedLearner learner(*trained.learner, policy, trained.start, views);
  if (!learner.own_gates().empty()) refuse("the learner makes gates of its weights");
  const Run run{
      learner,        views, time, std::min(learner.chunk(), time), {views.k.dim(0), views.k.dim(1)},
      views.k.dtype()};
  require_matrix(run);
  State state = trained.start;
  const Block first = block_of(views, policy, 0, run.chunk);
  const Use last = last_use(learner.predict(state.weights, first.q.spec()),
                            learner.loss(state.weights, first.k.spec(), first.v.spec()), state.weights);
  EffectiveAttention out;
  std::vector<Tensor> queries, keys, values;
  walk_chunks(0, time, run.chunk, [&](std::int64_t begin, std::int64_t end) {
    if (views.starts.defined()) state = begun(state, trained.start, slice(views.starts, 2, begin, begin + 1));
    const Part part = part_of(run, state, block_of(views, policy, begin, end), last);
    queries.push_back(part.query);
    keys.push_back(part.key);
    values.push_back(part.value);
    state = part.next;
  });
  out.queries = concat(queries, 2);
  out.keys = concat(keys, 2);
  out.values = concat(values, 2);
  const Tensor w = trained.start.weights.at(last.weight).value;
  out.base = last.transposed ? transpose(w) : w;
  const Reads reads = learner.per_chunk() ? reads_of_chunks(run, trained.start, last)
                                          : reads_of_tokens(run, trained.start, last);
  if (reads.feature_axis && last.transposed)
    refuse("gates per feature with a weight that is used transposed");
  out.matrix = scores(reads, out.queries, out.keys);
  const Tensor left = left_of_start(run, reads, trained.start.weights.at(last.weight));
  out.decay = broadcast_to(left, {views.k.dim(0), views.k.dim(1), time, left.rank() == 0 ? 1 : left.dim(-1)});
  return out;
}

}  // namespace nestgrad::ttt
