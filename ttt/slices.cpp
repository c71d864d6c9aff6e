#include "ttt/slices.h"

#include <fmt/format.h>

#include <algorithm>

#include "autograd/grad.h"
#include "autograd/scan.h"
#include "engine/core/index.h"
#include "engine/plan/dependence.h"
#include "ops/collectives.h"
#include "ttt/derived_learner.h"
#include "ttt/slice_proofs.h"

namespace nestgrad::ttt {

namespace {

// With an axis of one in front: one sequence as a batch, what one rank has as that of one rank.
Tensor of_one(Tensor x) {
  Shape shape = x.shape();
  shape.insert(shape.begin(), 1);
  return reshape(x, shape);
}

// ---- exchange ----

// What a slice makes of the state that it begins with: state i becomes S_i + sum over j of M_ij state_j.
struct SliceLaw {
  std::vector<Tensor> added;               // S_i, [batch, heads, in, out]
  std::vector<std::vector<Tensor>> moved;  // M_ij, [batch, heads, in, in]
  bool is_affine = true;                   // else M holds for states of zeros alone
};

// 1 where row and column are the same, of the shape of a square state.
Tensor unit_matrices(const Spec& state) {
  return broadcast_to(eye(state.dtype, state.shape[2]), state.shape);
}

// The largest mark of the values where `on` are marked.
char dependence(const std::vector<Tensor>& values, const std::vector<Tensor>& on, Follow follow) {
  const std::deque<GraphNode>& nodes = on[0].graph().nodes();
  std::vector<char> marked(nodes.size(), 0);
  for (const Tensor& x : on) marked[uz(x.id())] = 1;
  const std::vector<char> found = dependents(nodes, marked, follow);
  char most = 0;
  for (const Tensor& v : values) most = std::max(most, found[uz(v.id())]);
  return most;
}

SliceLaw law_of(const Learner& learner, const State& start, const Views& views,
                const InnerLoopOptions& options) {
  std::vector<Tensor> none, zero;
  for (const Tensor& x : start.flat()) {
    zero.push_back(zeros(x.dtype(), x.shape()));
    none.push_back(probe(zero.back()));  // a node of its own
  }
  SliceLaw law;
  law.added = train_along(learner, start.with(none), views, options).state.flat();
  std::vector<Tensor> all_moved;
  law.moved.resize(none.size());
  for (std::size_t j = 0; j < none.size(); ++j) {
    std::vector<Tensor> direction = zero;
    direction[j] = unit_matrices(none[j].spec());
    const std::vector<Tensor> moved = jvp(law.added, none, direction, {.allow_zero = true});
    for (std::size_t i = 0; i < moved.size(); ++i) law.moved[i].push_back(moved[i]);
    all_moved.insert(all_moved.end(), moved.begin(), moved.end());
  }
  // Nor may the state have a part of which the derivative knows nothing, as the side of a kink that a token is on.
  law.is_affine =
      dependence(all_moved, none, Follow::values) == 0 && dependence(law.added, none, Follow::cuts) != kCut;
  return law;
}

// What a state becomes along a slice.
std::vector<Tensor> moved_by(const SliceLaw& law, const std::vector<Tensor>& state) {
  std::vector<Tensor> out;
  for (std::size_t i = 0; i < state.size(); ++i) {
    Tensor sum = law.added[i];
    for (std::size_t j = 0; j < state.size(); ++j) sum = sum + matmul(law.moved[i][j], state[j]);
    out.push_back(sum);
  }
  return out;
}

// What a policy keeps from being exchanged or passed on.
struct Facts {
  Policy policy;
  bool is_packed = false, has_places = false;
  std::int64_t tokens = 0;  // of a slice
  std::string follows;      // why what a token teaches depends on what was learnt before; empty: it does not
};

Facts facts_of(const Learner& given, const State& start, const Views& views, const Policy& policy) {
  using enum Property;
  const Trained trained = restrict_to(given, start, policy.trained);
  const DerivedLearner learner(*trained.learner, policy, trained.start, views);
  std::string why = learner.why_not({separate_tokens, factored_uses, constant_factors});
  if (!learner.own_gates().empty()) why = "the learner makes gates of its weights";
  return {policy, views.starts.defined(), views.position.defined(), views.k.dim(2), why};
}

// Both ways begin a slice with one state, where the whole has one too: at the borders of chunks. Elsewhere the tokens of the
// chunk before still learn from its first weights; that is the same only where they do not ask any, each makes a step of its own, and
// nothing goes by a token's place in its chunk or by the chunk's number.
std::string why_no_state_between(const Facts& of) {
  if (of.is_packed) return "packed documents would begin with what the slice before has left";
  const bool has_chunks = of.policy.update == Policy::Update::per_chunk || of.has_places ||
                          of.policy.meta == Policy::Meta::truncated || !of.follows.empty();
  return has_chunks ? why_not_whole_chunks(of.policy, of.tokens) : std::string();
}

// The law is a derivative, and lacks what a policy holds constant.
std::string why_no_law(const Facts& of) {
  if (of.policy.meta == Policy::Meta::truncated)
    return fmt::format(
        "its meta-gradient is cut every {} chunks, and so would be the law of a slice, a derivative",
        of.policy.horizon);
  if (of.policy.meta == Policy::Meta::first_order && !of.follows.empty())
    return "its meta-gradient is first-order: the law of a slice, a derivative, would lack what inner gradients do";
  return {};
}

std::string why_not_exchanged(const Learner& learner, const State& start, const Views& views,
                              const InnerLoopOptions& options, const Facts& facts) {
  if (std::string why = why_no_state_between(facts); !why.empty()) return why;
  if (std::string why = why_no_law(facts); !why.empty()) return why;
  for (const Tensor& x : start.flat())
    if (x.rank() != 4 || x.dim(2) != x.dim(3))
      return fmt::format("a state is {}: only square ones are moved by a matrix of their own size",
                         to_string(x.spec()));
  if (!law_of(learner, start, views, options).is_affine)
    return "the last state is not affine in the first: its derivative depends on it, or does not know all that does "
           "(a comparison, stop_gradient)";
  return why_not_from_the_left(learner, start, views, options);
}

// By rank, [ranks, batch, heads, ..].
Tensor of_all_ranks(Tensor x, const ProcessGroup& ranks) { return all_gather(of_one(x), 0, ranks); }
Tensor of_rank(Tensor all, int rank) {
  Shape shape(all.shape().begin() + 1, all.shape().end());
  return reshape(slice(all, 0, rank, rank + 1), shape);
}

// What this rank's slices begin with.
State exchanged(const State& first, const SliceLaw& law, const ProcessGroup& ranks) {
  const std::size_t states = law.added.size();
  std::vector<Tensor> added;
  std::vector<std::vector<Tensor>> moved(states);
  for (std::size_t i = 0; i < states; ++i) {
    added.push_back(of_all_ranks(law.added[i], ranks));
    for (const Tensor& m : law.moved[i]) moved[i].push_back(of_all_ranks(m, ranks));
  }
  std::vector<Tensor> at = first.flat();
  std::vector<std::vector<Tensor>> begins(states);  // of each rank
  for (int r = 0; r < ranks.size(); ++r) {
    for (std::size_t i = 0; i < states; ++i) begins[i].push_back(of_one(at[i]));
    SliceLaw of_r;
    for (std::size_t i = 0; i < states; ++i) {
      of_r.added.push_back(of_rank(added[i], r));
      of_r.moved.emplace_back();
      for (const Tensor& m : moved[i]) of_r.moved[i].push_back(of_rank(m, r));
    }
    at = moved_by(of_r, at);
  }
  // Every rank makes all of them, and takes its own: no rank's program may lack what others wait for.
  std::vector<Tensor> own;
  for (const std::vector<Tensor>& all : begins) own.push_back(of_rank(concat(all, 0), ranks.rank()));
  return first.with(own);
}

// ---- pipeline ----

// The sequence that a rank works on in each round.
Tensor sequence_of_round(std::int64_t batch, const ProcessGroup& ranks) {
  std::vector<double> sequences;
  for (std::int64_t round = 0; round < batch + ranks.size() - 1; ++round)
    sequences.push_back(static_cast<double>(std::clamp<std::int64_t>(round - ranks.rank(), 0, batch - 1)));
  const auto rounds = static_cast<std::int64_t>(sequences.size());
  return constant(Array::of(sequences, {rounds}, DType::i32));
}

Tensor passed_on(const Learner& learner, const State& start, const Views& views,
                 const InnerLoopOptions& options, const ProcessGroup& ranks) {
  const std::int64_t batch = views.q.dim(0);
  const Tensor sequences = sequence_of_round(batch, ranks);
  std::vector<std::string> gates;
  Tensors rows{gather(views.q, sequences), gather(views.k, sequences), gather(views.v, sequences)};
  for (const auto& [name, gate] : views.gates) gates.push_back(name), rows.push_back(gather(gate, sequences));
  // 0 at the first rank, which no one passes anything on to, and 1 elsewhere: no rank's program may lack what others wait for.
  const Tensor has_before = rank_before(zero_like(views.q) + 1.0, ranks);
  const Tensor mask = slice(reshape(has_before, {has_before.spec().size()}), 0, 0, 1);
  // Chunks are cut from their past where those of the whole sequence are.
  InnerLoopOptions later = options;
  if (options.policy.meta == Policy::Meta::truncated)
    later.chunks_before = mask * static_cast<double>(ranks.rank() * (views.k.dim(2) / options.policy.chunk));
  const std::size_t of_tokens = rows.size();
  std::vector<Tensor>
      any;  // of one sequence: what is passed on in the first round, no one's answers are made of
  for (const Tensor& x : start.flat()) {
    any.push_back(slice(x, 0, 0, 1));
    rows.push_back(gather(x, sequences));
  }
  const StepFn round = [&](const Tensors& left, const Tensors& x) -> StepOutput {
    Tensors begin;
    for (std::size_t i = 0; i < left.size(); ++i)
      begin.push_back(select(mask, rank_before(left[i], ranks), of_one(x[of_tokens + i])));
    Views own{of_one(x[0]), of_one(x[1]), of_one(x[2]), {}, views.position};
    for (std::size_t i = 0; i < gates.size(); ++i) own.gates[gates[i]] = of_one(x[3 + i]);
    const InnerLoopResult r = train_along(learner, start.with(begin), own, later);
    return {r.state.flat(), {r.output}};
  };
  const Tensor answers = scan(round, any, rows).ys[0];  // [rounds, 1, heads, time, dim]
  Shape shape = answers.shape();
  shape.erase(shape.begin() + 1);
  return slice(reshape(answers, shape), 0, ranks.rank(), ranks.rank() + batch);
}

}  // namespace

std::string_view name(SliceForm form) {
  switch (form) {
    case SliceForm::automatic:
      return "automatic";
    case SliceForm::heads:
      return "heads";
    case SliceForm::exchange:
      return "exchange";
    case SliceForm::pipeline:
      return "pipeline";
  }
  return {};
}

std::string why_not_whole_chunks(const Policy& policy, std::int64_t tokens) {
  if (policy.chunk == Policy::kWholeSequence) return "it learns from the whole sequence at once";
  if (tokens % policy.chunk == 0) return {};
  return fmt::format("slices of {} tokens are not whole chunks of {}", tokens, policy.chunk);
}

SlicePlan choose_slices(const System& system, const SystemSizes& sizes, const Learner& learner,
                        const Weights& start, const Views& views, const InnerLoopOptions& options,
                        std::int64_t slices, const std::string& who, SliceForm wanted) {
  const std::int64_t batch = views.k.dim(0), heads = sizes.heads;
  SlicePlan plan{wanted, {}};
  const auto possible = [&](SliceForm form, const std::string& why) {
    if (!why.empty()) plan.refused.push_back({form, why});
    return why.empty();
  };
  const auto take = [&](SliceForm form) {
    plan.form = form;
    return plan;
  };
  const bool any = wanted == SliceForm::automatic;
  if ((any || wanted == SliceForm::heads) &&
      possible(SliceForm::heads,
               heads % slices == 0
                   ? why_heads_are_no_parts(system, sizes, views, options, slices)
                   : fmt::format("{} heads cannot be shared equally by {} slices", heads, slices)))
    return take(SliceForm::heads);
  const State state = State::start(learner, start);
  const Facts facts = facts_of(learner, state, views, options.policy);
  const auto can_exchange = [&] {
    return possible(SliceForm::exchange, why_not_exchanged(learner, state, views, options, facts));
  };
  const auto can_pass_on = [&] { return possible(SliceForm::pipeline, why_no_state_between(facts)); };
  // A slice three times (S, M, answers) at all ranks at once, or once for each sequence and then for each rank that waits.
  const bool few_sequences = batch + slices - 1 > 3 * batch;
  if (any && few_sequences) {
    if (can_exchange()) return take(SliceForm::exchange);
    if (can_pass_on()) return take(SliceForm::pipeline);
  } else if (any) {
    if (can_pass_on()) return take(SliceForm::pipeline);
    if (can_exchange()) return take(SliceForm::exchange);
  }
  if (wanted == SliceForm::exchange && can_exchange()) return take(wanted);
  if (wanted == SliceForm::pipeline && can_pass_on()) return take(wanted);
  std::string text = fmt::format("[slices] {} cannot go along {} slices of a sequence:", who, slices);
  for (const SlicePlan::Refusal& r : plan.refused) text += fmt::format(" {}: {};", name(r.form), r.why);
  throw ConfigError(text + (any ? "" : " let another way be chosen, or") +
                    " choose a divisor of the heads, or slices of whole chunks");
}

std::string SlicePlan::str() const {
  static constexpr std::pair<SliceForm, std::string_view> kMeanings[] = {
      {SliceForm::heads,
       "all tokens of some heads at each rank; parts of q, k, v, gates and answers change hands"},
      {SliceForm::exchange, "what each slice makes of its first state, W -> M W + S, is known to all ranks"},
      {SliceForm::pipeline,
       "states are passed on from rank to rank, one sequence of the batch after the other"}};
  std::string text;
  for (const auto& [of, meaning] : kMeanings)
    if (of == form) text = fmt::format("slices     {}: {}\n", name(of), meaning);
  for (const Refusal& r : refused) text += fmt::format("not {}: {}\n", name(r.form), r.why);
  return text;
}

Tensor train_along_slices(const Learner& learner, const Weights& start, const Views& views,
                          const InnerLoopOptions& options, const ProcessGroup& ranks, SliceForm form) {
  if (form != SliceForm::exchange && form != SliceForm::pipeline)
    throw ConfigError(fmt::format(
        "[slices] a loop goes along slices by exchange or pipeline, not {}; let choose_slices() choose one",
        name(form)));
  const State first = State::start(learner, start);
  if (form == SliceForm::pipeline) return passed_on(learner, first, views, options, ranks);
  const State own = exchanged(first, law_of(learner, first, views, options), ranks);
  return train_along(learner, own, views, options).output;
}

}  // namespace nestgrad::ttt
