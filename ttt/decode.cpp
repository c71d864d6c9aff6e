// The inner loop one token at a time: what a chunk has gathered so far is carried in the states of a stream.
#include <fmt/format.h>

#include "ttt/forms/dual.h"
#include "ttt/forms/per_chunk.h"
#include "ttt/forms/primal.h"
#include "ttt/inner_loop.h"

namespace nestgrad::ttt {

namespace {

constexpr std::string_view kRunning = "/running.";  // the latest weights, within a chunk

class Decoding {
 public:
  Decoding(const Learner& learner, const Policy& policy, Tensor slot, Stream& stream, std::string name)
      : learner_(learner), policy_(policy), stream_(stream), name_(std::move(name)), slot_(slot) {
    const DType dtype = slot.dtype();
    places_ = iota(dtype, {policy.chunk, 1}, 0);
    here_ = equal(places_, slot);  // [chunk, 1]
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
  // `next` at the end of a chunk, else `now`.
  State at_end(const State& next, const State& now) const {
    std::vector<Tensor> flat = now.flat();
    const std::vector<Tensor> then = next.flat();
    for (std::size_t i = 0; i < flat.size(); ++i) flat[i] = select(full_, then[i], flat[i]);
    return now.with(flat);
  }

  // This token's row among those of its chunk, [.., chunk,
  // dim]; rows of later places are left from the chunk before.
  Tensor remember(Tensor row, const std::string& id) {
    if (!row.defined()) return row;
    Shape shape = row.shape();
    shape[shape.size() - 2] = policy_.chunk;
    const std::string state = fmt::format("{}/{}", name_, id);
    const Tensor cached = stream_.state(state, zeros(row.dtype(), shape));
    const Tensor rows = select(here_, row, cached);
    stream_.carry(state, rows);
    return rows;
  }
  Gates remember(const Gates& gates) {
    Gates out;
    for (const auto& [name, row] : gates) out[name] = remember(row, "gate." + name);
    return out;
  }

  // The row of this token, of [.., chunk, ..] with `features` axes after the chunk's.
  Tensor row_here(Tensor x, int features) const {
    Shape shape(static_cast<std::size_t>(features) + 1, 1);
    shape[0] = policy_.chunk;
    return sum(x * reshape(here_, shape), {-1 - features}, kKeep);
  }

 protected:
  const Learner& learner_;
  const Policy& policy_;
  Stream& stream_;
  std::string name_;
  Tensor slot_, places_, here_, full_;
};

// A chunk's factors and gates are carried; the law is that
// of the whole chunk, of which this token's row is read.
class DualDecoding : public DualForm {
 public:
  using DualForm::DualForm;
  BlockResult step(const State& state, const Block& block, Decoding& d) const {
    Factors f = factors(state, block, {});
    for (std::size_t i = 0; i < f.size(); ++i) {
      if (const Tensor rate = rate_of(block.gates, state.weights.at(f[i].weight)); rate.defined())
        f[i].b = f[i].b * rate;
      f[i].a = d.remember(f[i].a, fmt::format("gradient{}.a", i));
      f[i].b = d.remember(f[i].b, fmt::format("gradient{}.b", i));
    }
    const Gates gates = d.remember(block.gates);  // all: what a piece of one's own reads is not declared
    const Shape lead(block.k.shape().begin(), block.k.shape().end() - 2);
    const auto prepared = prepare(state, gates, lead, policy_.chunk, block.position);
    const Laws& laws = dynamic_cast<const Laws&>(*prepared);
    std::vector<Reads> reads;
    for (const BlockLaw& law : laws.each) {
      Reads r = policy_.read == Policy::Read::after_write ? law.after : law.before;
      r.z = d.row_here(r.z, r.feature_axis ? 2 : 1);
      for (Tensor& c : r.c)
        if (c.defined()) c = d.row_here(c, 1);
      reads.push_back(std::move(r));
    }
    const LearnerTrace predict = LearnerTrace::of_predict(learner_, state.weights, block.q.spec());
    return {read(predict, state, f, reads, std::span(&block.q, 1)), end_state(state, f, laws.each), {}, {}};
  }
};

}  // namespace

Tensor train_step(const Learner& given, const Weights& start, const Views& given_views, Tensor slot,
                  const InnerLoopOptions& options, Stream& stream, const std::string& name) {
  const Scope scope("inner step");
  const Policy& policy = options.policy;
  Views views = given_views;
  if (policy.query_is_key) views.q = views.k;
  policy.check();
  if (policy.chunk == Policy::kWholeSequence)
    throw ConfigError(fmt::format(
        "[decode] a chunk that is the whole sequence ends nowhere when tokens come one by one ({})",
        policy.str()));
  if (const std::string why = why_not_causal(given, policy, start, views.q.spec()); !why.empty())
    throw ConfigError("[decode] " + why);
  const Trained trained = restrict_to(given, State::start(given, start), policy.trained);
  const Learner& learner = *trained.learner;
  const FormOptions form_options{learner, policy, {}};
  Decoding d(learner, policy, slot, stream, name);
  Block block{views.q, views.k, views.v, views.gates, views.position, true, {}};

  const Analysis analysis = analyse(learner, policy, trained.start, block);
  const bool forced = options.form == FormChoice::primal;
  if (policy.update == Policy::Update::per_chunk) {
    const State state = d.carried(trained.start);
    const PerChunkForm form(form_options,
                            !forced && analysis.independent.empty() && analysis.factors.empty());
    const Tensor out = form.predict(state.weights, block.q);
    Block all{block.q, d.remember(block.k, "k"), d.remember(block.v, "v"), d.remember(block.gates), {}, true,
              {}};
    d.carry(d.at_end(form.learnt(state, all), state));
    return out;
  }
  for (const std::string& why : {analysis.members, analysis.independent})
    if (!forced && !why.empty()) throw FormError(why);
  const bool dual = !forced && analysis.factors.empty() && analysis.linear_step.empty();
  if (dual && policy.chunk > 1) {
    const State state = d.carried(trained.start);
    const DualDecoding form(form_options);
    const BlockResult r = form.step(state, block, d);
    d.carry(d.at_end(r.next, state));
    return r.output;
  }
  // Gradients at the chunk's first weights, steps from the latest ones.
  if (block.position.defined()) {
    const Tensor places = iota(slot.dtype(), {policy.chunk}, 0), all = block.position;
    block.position = sum(all * equal(places, slot), {0}, kKeep);
    block.earlier = sum(all * equal(places + 1.0, slot), {0}, kKeep);  // 0 for the first
  }
  const State running = d.carried(trained.start, policy.chunk == 1 ? "." : kRunning);
  if (dual) {
    const DualForm form(form_options);
    const Shape lead(block.k.shape().begin(), block.k.shape().end() - 2);
    const auto prepared = form.prepare(running, block.gates, lead, 1, block.position);
    const BlockResult r = form.run(running, block, prepared.get());
    d.carry(r.next);
    return r.output;
  }
  const PrimalForm form(form_options);
  if (policy.chunk == 1) {
    const BlockResult r = form.run(running, block, nullptr);
    d.carry(r.next);
    return r.output;
  }
  const State at = d.carried(trained.start);
  const BlockResult r = form.run_from(at, running, block);
  d.carry(d.at_end(r.next, r.unplaced), kRunning);
  d.carry(d.at_end(r.next, at));
  return r.output;
}

}  // namespace nestgrad::ttt
