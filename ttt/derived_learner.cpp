#include "ttt/derived_learner.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "ttt/forms/chunk_parallel.h"
#include "ttt/forms/step_members.h"
#include "ttt/forms/wy.h"
#include "ttt/one_text.h"

namespace nestgrad::ttt {

namespace {

// The reason that fn gives for refusing; empty if it does not.
template <class Fn>
std::string reason(Fn fn) {
  try {
    fn();
    return {};
  } catch (const FormError& e) {
    return e.what();
  }
}

std::string dependence_of(const Factors& factors, const Weights& w) {
  for (std::size_t of = 0; of < w.size(); ++of)
    for (std::size_t on = 0; on < w.size(); ++on)
      for (const Factor& f : factors) {
        if (f.weight != of) continue;
        for (const Tensor& side : {f.a, f.b})
          if (side.defined() && mentions(side, w.at(on).value))
            return fmt::format(
                "the gradient of '{}' depends on '{}' ({}): it has to be taken anew after every write",
                w.at(of).name, w.at(on).name, of == on ? "itself" : "another learning weight");
      }
  return {};
}

[[noreturn]] void refuse_text(const std::string& why) {
  throw FormError(fmt::format(
      "{}. A learner computes the same for any number of tokens, chunks, sequences and heads: count axes "
      "from the end, and make nothing of the rows' shape but of their features",
      why));
}

}  // namespace

DerivedLearner::DerivedLearner(const Learner& learner, const Policy& policy, const State& start,
                               const Views& views)
    : learner_(learner),
      policy_(policy),
      optimizer_(learner.optimizer()),
      own_gates_(learner.own_gates()),
      start_(start.weights),
      q_(views.q.spec()),
      k_(views.k.spec()),
      v_(views.v.spec()),
      members_(views.k.dim(0) * views.k.dim(1)),
      time_(views.k.dim(2)),
      home_(context().emit.graph ? *context().emit.graph : views.k.graph()) {
  policy.check();
  Graph scratch(GraphOptions{.parent = &home_, .hoist = false});
  const GraphScope scope(scratch);
  std::vector<Tensor> flat;
  const auto line_of = [](const Tensor& t) { return t.graph().node(t.id()).loc; };
  for (const Tensor& t : start.flat())
    flat.push_back(scratch.input(
        t.spec(), flat.size() < start.weights.size() ? start.weights.at(flat.size()).name : "", line_of(t)));
  const State state = start.with(flat);
  const std::int64_t tokens = std::min(chunk(), time_);
  const auto first_chunk = [&](const Tensor& rows) {
    Spec spec = rows.spec();
    if (tokens < time_) spec.shape[2] = tokens;
    return spec;
  };
  const Tensor k = scratch.input(first_chunk(views.k), "k", line_of(views.k)),
               v = scratch.input(first_chunk(views.v), "v", line_of(views.v));
  Gates gates;
  for (const auto& [name, rows] : views.gates)
    gates[name] = scratch.input(first_chunk(rows), name, line_of(rows));
  prove_uses(state.weights, first_chunk(views.q), k, v);
  if (!own_gates_.empty()) prove_gates(state, gates, k, v);
  prove_step(state, gates, k, v);
  prove_policy(views);
}

void DerivedLearner::prove_uses(const Weights& w, const Spec& q, const Tensor& k, const Tensor& v) {
  const LearnerTrace &loss = this->loss(w, k.spec(), v.spec()), &predict = this->predict(w, q);
  refuse(Property::separate_members, loss.members().empty() ? predict.members() : loss.members());
  refuse(Property::separate_tokens, loss.mixing().empty() ? predict.mixing() : loss.mixing());
  if (has(Property::separate_tokens)) other_text_ = why_other_text(w, loss, predict, q, k.spec(), v.spec());
  if (has(Property::separate_members)) require_one_text();  // else that members meet comes first
  refuse(Property::factored_uses, loss.obstacle().empty() ? predict.obstacle() : loss.obstacle());
  for (std::size_t i = 0; i < w.size(); ++i)
    uses_.push_back(fmt::format("{}", fmt::join(loss.uses_of(i), "; ")));
  const std::string first =
      why_not({Property::separate_members, Property::separate_tokens, Property::factored_uses});
  refuse(Property::constant_factors, first.empty() ? dependence_of(factors_at(*this, w, k, v), w) : first);
  refuse(Property::affine_use, first);
}

// The forms trace the learner's text on rows of other shapes: a token at a time, chunks side by side. What it computes must not
// depend on that: it is traced again, with another axis in front, of an extent that no other has, and with other numbers of tokens.
// Two traces of several tokens are compared op by op; that of a single token may lack what only moves numbers.
std::string DerivedLearner::why_other_text(const Weights& w, const LearnerTrace& loss,
                                           const LearnerTrace& predict, const Spec& q, const Spec& k,
                                           const Spec& v) const {
  const std::int64_t tokens = k.shape[k.shape.size() - 2];
  std::int64_t front = 2;
  while (std::ranges::count(k.shape, front) + std::ranges::count(v.shape, front) > 0) ++front;
  const auto on = [&](Spec spec, std::int64_t count, bool in_front) {
    if (count > 0) spec.shape[spec.shape.size() - 2] = count;
    if (in_front) spec.shape.insert(spec.shape.begin(), front);
    return spec;
  };
  Graph scratch(GraphOptions{.parent = &home_, .hoist = false});
  const GraphScope scope(scratch);
  std::vector<Tensor> values;
  for (std::size_t i = 0; i < w.size(); ++i)
    values.push_back(scratch.input(on(w.at(i).value.spec(), 0, true), w.at(i).name));
  const Weights weights_in_front = w.with(values);
  struct Pair {
    LearnerTrace loss, predict;
  };
  const auto traced = [&](std::int64_t count, bool in_front) -> std::optional<Pair> {
    try {
      const Weights& weights = in_front ? weights_in_front : w;
      return Pair{LearnerTrace::of_loss(learner_, weights, on(k, count, in_front), on(v, count, in_front)),
                  LearnerTrace::of_predict(learner_, weights, on(q, count, in_front))};
    } catch (const std::exception&) {
      return std::nullopt;  // a text that takes such rows not at all: forms that need them say so
    }
  };
  const auto why_differs = [](const LearnerTrace& one_loss, const LearnerTrace& one_predict,
                              const std::optional<Pair>& other) -> std::string {
    if (!other) return {};
    const std::string why = one_loss.why_differs(other->loss);
    return why.empty() ? one_predict.why_differs(other->predict) : why;
  };
  const auto meet = [](const std::optional<Pair>& p) {
    return p && !(p->loss.mixing().empty() && p->predict.mixing().empty());
  };
  // Where a step takes a chunk, a token less, as the text may look at whether there is a chunk before (why_chunks_meet); with
  // fewer tokens than three that leaves too few to compare, and one that then lets tokens meet may be such a text.
  const bool less = per_chunk() && tokens > 2, more = per_chunk() && !less;
  const std::int64_t count = less ? tokens - 1 : tokens + 1 + (tokens == 1);
  std::optional<Pair> other = traced(count, true);
  if (!other) other = traced(count, false);
  if (!(more && meet(other)))
    if (std::string why = why_differs(loss, predict, other); !why.empty()) return why;
  if (tokens > 1) return why_differs(loss, predict, traced(1, true));
  if (const std::optional<Pair> two = traced(2, false); two && !meet(two) && !meet(other))
    return why_differs(two->loss, two->predict, other);
  return {};
}

Tensor DerivedLearner::answers(const Weights& w, Tensor x) const {
  const OwnLines lines;
  return learner_.predict(w.apart(), probe(x));
}

Tensor DerivedLearner::losses(const Weights& w, Tensor k, Tensor v) const {
  const OwnLines lines;
  return learner_.loss(w.apart(), probe(k), probe(v));
}

Gates DerivedLearner::made_gates(const Weights& spread, Tensor k, Tensor v, Tensor place) const {
  const Scope scope("own gates");
  const OwnLines lines;
  Gates out = learner_.gates(spread.apart(), probe(k), probe(v), probe(place));
  Shape wanted = k.shape();
  wanted.back() = 1;
  for (const std::string& name : own_gates_)
    if (!out.contains(name))
      throw ConfigError(
          fmt::format("[gates] Learner::own_gates() names '{}', which gates() does not give", name));
  for (auto& [name, rows] : out) {
    if (std::ranges::find(own_gates_, name) == own_gates_.end())
      throw ConfigError(
          fmt::format("[gates] Learner::gates() gives '{}', which own_gates() does not name", name));
    if (rows.rank() > k.rank() || (rows.rank() > 0 && rows.dim(-1) != 1))
      throw ShapeError(fmt::format("[gates] the learner's gate '{}' is {}; it must be one number a token, {}",
                                   name, describe(rows), to_string(wanted)));
    rows = broadcast_to(rows, wanted);
  }
  return out;
}

// Each token's gates are made of its own row, and they are needed before the chunk that follows can be worked on.
void DerivedLearner::prove_gates(const State& state, Gates& gates, const Tensor& k, const Tensor& v) {
  Graph& graph = k.graph();
  const std::int64_t tokens = k.dim(-2);
  const Tensor place = graph.input(Spec{k.dtype(), {tokens, 1}}, "place");
  const Gates made = made_gates(state.weights.spread(tokens), k, v, place);
  const int axis = k.rank() - 2;
  const std::vector<AxisFlow> flows = follow(
      graph.nodes(),
      {{k.id(), AxisFlow::along(axis)}, {v.id(), AxisFlow::along(axis)}, {place.id(), AxisFlow::along(0)}},
      {.rules = true});
  for (const auto& [name, rows] : made) {
    const AxisFlow& flow = flows[static_cast<std::size_t>(rows.id())];
    if (has(Property::separate_tokens) && flow.kind == AxisFlow::Kind::mixed)
      refuse(Property::separate_tokens,
             fmt::format("[gates] tokens are not independent: in the gate '{}', at {}, {}", name,
                         describe(graph.tensor(flow.culprit)), flow.why));
    if (has(Property::separate_tokens) && flow.kind == AxisFlow::Kind::free &&
        may_vary(graph.nodes(), rows.id(), axis))
      refuse(
          Property::separate_tokens,
          fmt::format(
              "[gates] the gate '{}' numbers the tokens by itself, at {}: make it of `place`, which says where in "
              "the chunk a token stands",
              name, describe(rows)));
    for (int member = 0; member < axis && has(Property::separate_members); ++member) {
      if (k.dim(member) == 1) continue;
      const AxisFlow of_members =
          follow(graph.nodes(), member_seeds(graph.nodes(), member, k.rank()),
                 {.positional = true, .rules = true})[static_cast<std::size_t>(rows.id())];
      if (of_members.kind == AxisFlow::Kind::mixed)
        refuse(Property::separate_members,
               fmt::format("[gates] sequences and heads are not independent: in the gate '{}', at {}, {}",
                           name, describe(graph.tensor(of_members.culprit)), of_members.why));
    }
    gates[name] = rows;
  }
  if (has(Property::separate_tokens)) prove_one_text_of_gates(state.weights, k, v);
  const std::string why = fmt::format("the learner makes its gates ('{}') of the weights that a chunk finds",
                                      fmt::join(own_gates_, "', '"));
  for (const Property p : {Property::constant_factors, Property::affine_use})
    if (has(p)) refuse(p, why);
}

// Gates are made for a whole chunk, for the rest of a sequence that fills none, and in decoding for a token.
void DerivedLearner::prove_one_text_of_gates(const Weights& w, const Tensor& k, const Tensor& v) const {
  struct Traced {
    std::unique_ptr<Graph> graph;
    std::vector<NodeId> outs;
  };
  const auto traced = [&](std::int64_t tokens) -> std::optional<Traced> {
    auto graph = std::make_unique<Graph>(GraphOptions{.parent = &home_, .hoist = false});
    const GraphScope scope(*graph);
    std::vector<Tensor> weights;
    for (const Tensor& value : w.values()) weights.push_back(graph->input(value.spec()));
    const auto rows = [&](Spec spec) {
      spec.shape[spec.shape.size() - 2] = tokens;
      return graph->input(spec);
    };
    const Tensor keys = rows(k.spec()), values = rows(v.spec()),
                 place = graph->input(Spec{k.dtype(), {tokens, 1}});
    std::vector<NodeId> outs;
    try {
      for (const auto& [name, made] : made_gates(w.with(weights).spread(tokens), keys, values, place))
        outs.push_back(graph->lift(made));
    } catch (const std::exception&) {
      return std::nullopt;  // as in why_other_text
    }
    return Traced{std::move(graph), std::move(outs)};
  };
  const std::int64_t tokens = std::max<std::int64_t>(2, k.dim(-2));
  const std::optional<Traced> several = traced(tokens), more = traced(tokens + 1), one = traced(1);
  for (const auto& [other, one_token] : {std::pair(&more, false), {&one, true}}) {
    if (!several || !*other) continue;
    const std::string why =
        why_not_one_text({*several->graph, several->outs}, {*(*other)->graph, (*other)->outs}, one_token);
    if (!why.empty()) refuse_text(fmt::format("[gates] {}", why));
  }
}

void DerivedLearner::prove_step(const State& state, const Gates& gates, const Tensor& k, const Tensor& v) {
  const Weights& w = state.weights;
  if (has(Property::affine_use))
    refuse(
        Property::affine_use, reason([&] {
          if (affine_use(*this, w, k, v).transposed && StepLaw::of(optimizer_, state, 0, gates).width() > 1)
            throw FormError(
                "[wy] the optimiser has a number per input feature, and the loss uses W', of which these "
                "are the outputs: each output would have a system of its own");
        }));
  refuse(Property::linear_step, reason([&] {
           for (std::size_t i = 0; i < w.size(); ++i)
             feature_gates_ = StepLaw::of(optimizer_, state, i, gates).width() > 1 || feature_gates_;
         }));
  const Gates columns = chunk_gates(gates);
  for (std::size_t i = 0; i < w.size() && has(Property::separate_members); ++i)
    refuse(Property::separate_members, why_members_meet(optimizer_, state, i, columns, false));
  if (per_chunk())
    refuse(Property::affine_step, reason([&] {
             for (std::size_t i = 0; i < w.size(); ++i) {
               require_chunk_split(optimizer_, state, i, columns);
               if (const std::string why = why_members_meet(optimizer_, state, i, columns, true);
                   !why.empty())
                 throw FormError(why);
             }
           }));
}

void DerivedLearner::prove_policy(const Views& views) {
  const auto require = [&](Property p, bool fine, const char* why) {
    if (!fine) refuse(p, why);
  };
  require(Property::one_step, policy_.steps == 1, "each chunk makes several steps, one after the other");
  require(Property::several_chunks, policy_.chunk != Policy::kWholeSequence && time_ > policy_.chunk,
          "the whole sequence is one chunk: there is nothing to do at once");
  require(Property::online, policy_.chunk == 1,
          "the tokens of a chunk have their gradients taken at the same weights: there is nothing to solve");
  require(Property::no_position, !views.position.defined(),
          "the position rates count from the beginning of each chunk");
  require(Property::uncut_meta, policy_.meta != Policy::Meta::truncated,
          "the meta-gradient is cut between chunks, which must therefore exist");
  require(Property::full_meta, policy_.meta == Policy::Meta::full,
          "the solve cannot tell the meta-gradient's parts apart");
  require(
      Property::one_document, !views.starts.defined(),
      "documents are packed: the state begins anew between chunks, which must therefore come one after the other");
}

void DerivedLearner::require_one_text() const {
  if (!other_text_.empty()) refuse_text(other_text_);
}

std::string DerivedLearner::why_not(const std::vector<Property>& all) const {
  for (Property p : all)
    if (!has(p)) return why_not(p);
  return {};
}

std::string DerivedLearner::why_chunks_meet() const {
  if (chunk() >= time_) return {};
  try {
    const LearnerTrace &learnt = loss(start_, k_, v_), &answered = predict(start_, q_);
    if (!learnt.mixing().empty()) return learnt.mixing();
    if (!answered.mixing().empty()) return answered.mixing();
    const std::string why = losses_.front().why_differs(learnt);
    return why.empty() ? predictions_.front().why_differs(answered) : why;
  } catch (const Error& e) {
    return fmt::format("the learner takes a chunk, but not the whole sequence: {}", e.what());
  }
}

const LearnerTrace& DerivedLearner::loss(const Weights& weights, const Spec& k, const Spec& v) const {
  for (const LearnerTrace& known : losses_)
    if (known.is_of({k, v})) return known;
  const GraphScope scope(home_);
  return losses_.emplace_back(LearnerTrace::of_loss(learner_, weights, k, v));
}

const LearnerTrace& DerivedLearner::predict(const Weights& weights, const Spec& q) const {
  for (const LearnerTrace& known : predictions_)
    if (known.is_of({q})) return known;
  const GraphScope scope(home_);
  return predictions_.emplace_back(LearnerTrace::of_predict(learner_, weights, q));
}

std::string why_not_causal(const Learner& learner, const Policy& policy, const Weights& start, Spec q) {
  if (!policy.causal())
    return fmt::format(
        "a policy that reads whole chunks after writing them cannot answer token by token ({})",
        policy.str());
  if (policy.update == Policy::Update::per_token || policy.chunk == 1) return {};
  std::int64_t& tokens = q.shape[q.shape.size() - 2];
  tokens = std::max<std::int64_t>(2, policy.chunk_of(tokens));
  const std::string mixing = LearnerTrace::of_predict(learner, start, q).mixing();
  if (mixing.empty()) return {};
  return mixing +
         ". A token's answer would depend on later ones; let tokens "
         "meet in the layer's Task, which is given the stream";
}

}  // namespace nestgrad::ttt
