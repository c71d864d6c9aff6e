// The inner loop one token at a time: what a chunk has gathered so far is carried in the states of a stream.
#include <fmt/format.h>

#include "ttt/check_gates.h"
#include "ttt/forms/dual.h"
#include "ttt/forms/per_chunk.h"
#include "ttt/forms/primal.h"
#include "ttt/inner_loop.h"

namespace nestgrad::ttt {

namespace {

constexpr std::string_view kRunning = "/running.";  // the latest weights, within a chunk

// The states of a stream that hold what a chunk has gathered so far.
class ChunkSoFar {
 public:
  // slot: the place of this token in its chunk, as Stream::counter has its shape.
  ChunkSoFar(const Policy& policy, Tensor slot, Stream& stream, std::string name)
      : policy_(policy), stream_(stream), name_(std::move(name)), slot_(slot) {
    const Tensor places = iota(slot.dtype(), {policy.chunk, 1}, 0);
    here_ = equal(places, slot);     // [chunk, 1] or [batch, 1, chunk, 1]
    later_ = greater(places, slot);  // the same
    full_ = equal(slot, static_cast<double>(policy.chunk - 1));
  }

  // State and its value; what it becomes is decided by carry(). Weights and slots may have any names, so what
  // is not simply theirs stands behind a slash.
  State carried(const State& start, std::string_view group = ".") {
    std::vector<Tensor> flat;
    const std::vector<std::string> names = start.names();
    const std::vector<Tensor> values = start.flat();
    for (std::size_t i = 0; i < values.size(); ++i)
      flat.push_back(stream_.state(fmt::format("{}{}{}", name_, group, names[i]), values[i]));
    return start.with(flat);
  }
  void carry(const State& next, std::string_view group = ".") {
    const std::vector<std::string> names = next.names();
    const std::vector<Tensor> values = next.flat();
    for (std::size_t i = 0; i < values.size(); ++i)
      stream_.carry(fmt::format("{}{}{}", name_, group, names[i]), values[i]);
  }
  // The same, of what changes at the end of a chunk only.
  void carry_chunk(const State& next) {
    const std::vector<std::string> names = next.names();
    const std::vector<Tensor> values = next.flat();
    for (std::size_t i = 0; i < values.size(); ++i)
      stream_.carry_chunk(fmt::format("{}.{}", name_, names[i]), values[i], policy_.chunk, full_);
  }
  // `next` at the end of a chunk, else `now`.
  State at_end(const State& next, const State& now) const {
    std::vector<Tensor> flat = now.flat();
    const std::vector<Tensor> then = next.flat();
    for (std::size_t i = 0; i < flat.size(); ++i) flat[i] = select(full_, then[i], flat[i]);
    return now.with(flat);
  }

  // This token's row among those of its chunk, [.., chunk, dim]; rows of later places are left from the chunk before, or zeros.
  Tensor remember(Tensor row, const std::string& id) {
    if (!row.defined()) return row;
    Shape shape = row.shape();
    shape[shape.size() - 2] = policy_.chunk;
    const std::string state = fmt::format("{}/{}", name_, id);
    const Tensor cached = stream_.state(state, zeros(row.dtype(), shape));
    const Tensor rows = stream_.is_learning() ? cached : select(here_, row, cached);
    stream_.carry_row(state, rows, row, slot_);
    return rows;
  }
  // Of later places this token's: what is made of a gate, its logarithm say, need not be finite of a zero.
  Gates remember(const Gates& gates) {
    Gates out;
    for (const auto& [name, row] : gates) {
      const Tensor rows = remember(row, "gate." + name);
      out[name] = stream_.is_learning() ? rows : select(later_, row, rows);
    }
    return out;
  }

  // The row of this token, of [.., chunk, ..] with `features` axes after the chunk's.
  Tensor row_here(Tensor x, int features) const {
    Shape shape(here_.shape().begin(), here_.shape().end() - 1);
    shape.resize(shape.size() + static_cast<std::size_t>(features), 1);
    return sum(x * reshape(here_, shape), {-1 - features}, kKeep);
  }

 private:
  const Policy& policy_;
  Stream& stream_;
  std::string name_;
  Tensor slot_, here_, later_, full_;
};

// A chunk's factors and gates are carried; the law is that
// of the whole chunk, of which this token's row is read.
class DualDecoding : public DualForm {
 public:
  using DualForm::DualForm;
  BlockResult step(const State& state, Block block, Tensor slot, ChunkSoFar& d) const {
    block = with_own_gates(state, std::move(block), slot);
    Factors f = factors(state, block, {});
    for (std::size_t i = 0; i < f.size(); ++i) {
      if (const Tensor rate = rate_of(block.gates, state.weights.at(f[i].weight)); rate.defined())
        f[i].b = f[i].b * rate;
      f[i].a = d.remember(f[i].a, fmt::format("gradient{}.a", i));
      f[i].b = d.remember(f[i].b, fmt::format("gradient{}.b", i));
    }
    const Gates gates = d.remember(block.gates);  // all gates: custom pieces do not declare theirs
    const Shape lead(block.k.shape().begin(), block.k.shape().end() - 2);
    const Laws laws = prepare(state, gates, lead, policy_.chunk, block.position);
    std::vector<Reads> reads;
    for (const BlockLaw& law : laws.each) {
      Reads r = policy_.read == Policy::Read::after_write ? law.after : law.before;
      if (r.z.defined()) r.z = d.row_here(r.z, r.feature_axis ? 2 : 1);
      for (Tensor& c : r.c)
        if (c.defined()) c = d.row_here(c, 1);
      reads.push_back(std::move(r));
    }
    const LearnerTrace& predict = derived_.predict(state.weights, block.q.spec());
    return {read(predict, state, f, reads, std::span(&block.q, 1)), end_state(state, f, laws.each), {}, {}};
  }
};

// A step per chunk: this token reads, and the chunk's last token lets the whole chunk be learnt from.
Tensor read_then_learn(const PerChunkForm& form, const State& start, const Block& block, ChunkSoFar& d) {
  const State state = d.carried(start);
  const Tensor out = form.predict(state.weights, block.q);
  Block all{{block.q, d.remember(block.k, "k"), d.remember(block.v, "v"), d.remember(block.gates), {}},
            true,
            {},
            {}};
  d.carry_chunk(form.learnt(state, form.with_own_gates(state, std::move(all))));
  return out;
}

// Of a chunk's position rates those of this token and of the one before it (0 for the first), shaped as `slot`.
Block placed(Block block, std::int64_t chunk, Tensor slot) {
  if (!block.position.defined()) return block;
  const Tensor places = iota(slot.dtype(), {chunk}, 0), all = block.position;
  block.position = sum(all * equal(places, slot), {-1}, kKeep);
  block.earlier = sum(all * equal(places + 1.0, slot), {-1}, kKeep);
  return block;
}

// Every token is a chunk of its own.
Tensor step_online(const Form& form, const State& start, Block block, ChunkSoFar& d) {
  const State state = d.carried(start);
  block = form.with_own_gates(state, std::move(block));
  const Shape lead(block.k.shape().begin(), block.k.shape().end() - 2);
  const BlockResult r = form.run(state, block, form.prepare(state, block.gates, lead, 1, block.position));
  d.carry(r.next);
  return r.output;
}

// Gradients at the chunk's first weights, steps from the latest ones.
Tensor step_materialised(const PrimalForm& form, const State& start, Block block, Tensor slot,
                         ChunkSoFar& d) {
  const State running = d.carried(start, kRunning), at = d.carried(start);
  block = form.with_own_gates(at, std::move(block), slot);
  const BlockResult r = form.run_from(at, running, block);
  d.carry(d.at_end(r.next, r.unplaced), kRunning);
  d.carry(d.at_end(r.next, at));
  return r.output;
}

}  // namespace

Tensor train_step(const Learner& given, const Weights& start, const Views& given_views, Tensor slot,
                  const InnerLoopOptions& options, Stream& stream, const std::string& name) {
  const Scope scope("inner step");
  const Policy& policy = options.policy;
  Views views = given_views;
  if (policy.query_is_key) views.q = views.k;
  policy.check();
  check(options);
  if (views.starts.defined())
    throw ConfigError(
        "[decode] starts of packed documents (Views::starts) are for whole sequences; begin a new stream where a document begins");
  if (!options.gradient_offset.empty() || !options.state_offset.empty() || options.keep_points ||
      options.track_loss || options.chunks_before.defined())
    throw ConfigError(
        "[decode] offsets, points, losses and chunks_before are for whole sequences (train_along); a step of one token has none");
  if (policy.chunk == Policy::kWholeSequence)
    throw ConfigError(fmt::format(
        "[decode] a chunk that is the whole sequence ends nowhere when tokens come one by one ({})",
        policy.str()));
  for (const Tensor& view : {views.q, views.k, views.v})
    if (view.rank() != 4 || view.dim(2) != 1)
      throw ShapeError(
          fmt::format("[decode] takes one token at a time, a view is {} ({}); let train_along read several",
                      to_string(view.spec()), describe(view)));
  if (views.position.defined() && views.position.shape() != Shape{policy.chunk})
    throw ShapeError(fmt::format(
        "[decode] position rates are {} ({}); they must be {}, one for each place of a chunk",
        to_string(views.position.spec()), describe(views.position), to_string(Shape{policy.chunk})));
  if (const std::string why = why_not_causal(given, policy, start, views.q.spec()); !why.empty())
    throw ConfigError("[decode] " + why);
  const Trained trained = restrict_to(given, State::start(given, start), policy.trained);
  check_gates(trained, start, views);
  const DerivedLearner learner(*trained.learner, policy, trained.start, views);
  require_meaning(learner, options.form, policy.chunk);
  ChunkSoFar chunk(policy, slot, stream, name);
  Block block{views, true, {}, {}};
  const bool dual = options.form != FormChoice::primal &&
                    learner.why_not(row_of(FormChoice::dual, policy.update).needs).empty();
  if (learner.per_chunk()) {
    if (!learner.has(Property::separate_members))
      throw FormError(learner.why_not(Property::separate_members));
    if (dual) return read_then_learn(FactoredChunkForm(learner, {}), trained.start, block, chunk);
    return read_then_learn(PerChunkForm(learner, {}), trained.start, block, chunk);
  }
  if (dual && policy.chunk > 1) {
    const State state = chunk.carried(trained.start);
    const BlockResult r = DualDecoding(learner, {}).step(state, block, slot, chunk);
    chunk.carry_chunk(r.next);
    return r.output;
  }
  if (dual) return step_online(DualForm(learner, {}), trained.start, block, chunk);
  if (policy.chunk == 1) return step_online(PrimalForm(learner, {}), trained.start, block, chunk);
  block = placed(block, policy.chunk, slot);
  return step_materialised(PrimalForm(learner, {}), trained.start, block, slot, chunk);
}

}  // namespace nestgrad::ttt
