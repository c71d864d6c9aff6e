#include "ttt/analysis.h"

#include <fmt/format.h>

#include <algorithm>

#include "ttt/forms/chunk_parallel.h"
#include "ttt/forms/wy.h"
#include "ttt/trace.h"

namespace nestgrad::ttt {

namespace {

constexpr std::int64_t kFewTokens = 8;  // of a chunk

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

}  // namespace

Analysis analyse(const Learner& learner, const Policy& policy, const State& given, const Block& block) {
  Graph& parent = emit_state().graph ? *emit_state().graph : block.k.graph();
  Graph scratch(GraphOptions{.parent = &parent, .hoist = false});
  const GraphScope scope(scratch);
  std::vector<Tensor> flat;
  for (const Tensor& t : given.flat()) flat.push_back(scratch.input(t.spec()));
  const State state = given.with(flat);
  const Weights& w = state.weights;
  const Tensor k = scratch.input(block.k.spec(), "k"), v = scratch.input(block.v.spec(), "v");
  Gates gates;
  for (const auto& [name, rows] : block.gates) gates[name] = scratch.input(rows.spec(), name);
  const InnerOptimizer optimizer = learner.optimizer();

  Analysis out;
  const LearnerTrace loss = LearnerTrace::of_loss(learner, w, k.spec(), v.spec()),
                     predict = LearnerTrace::of_predict(learner, w, block.q.spec());
  out.members = loss.members().empty() ? predict.members() : loss.members();
  out.factors = loss.obstacle().empty() ? predict.obstacle() : loss.obstacle();
  out.independent = loss.mixing().empty() ? predict.mixing() : loss.mixing();
  for (std::size_t i = 0; i < w.size(); ++i)
    out.uses.push_back(fmt::format("{}", fmt::join(loss.uses_of(i), "; ")));
  const std::string& first = !out.members.empty()       ? out.members
                             : !out.independent.empty() ? out.independent
                                                        : out.factors;
  if (first.empty()) {
    out.degree_zero = dependence_of(factors_at(learner, w, k, v), w);
    out.affine_use = reason([&] {
      if (affine_use(learner, w, k, v).transposed && StepLaw::of(optimizer, state, 0, gates).per_feature())
        throw FormError(
            "[wy] the optimiser has a number per input feature, and the loss uses W', of which these are the "
            "outputs: each output would have a system of its own");
    });
  } else {
    out.degree_zero = out.affine_use = first;
  }
  const bool per_chunk = policy.update == Policy::Update::per_chunk;
  out.linear_step = reason([&] {
    for (std::size_t i = 0; i < w.size(); ++i) StepLaw::of(optimizer, state, i, gates);
  });
  if (per_chunk)
    out.split_step = reason([&] {
      const Gates columns = chunk_gates(gates);
      for (std::size_t i = 0; i < w.size(); ++i) require_chunk_split(optimizer, state, i, columns);
    });
  return out;
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

FormPlan choose_form(const Analysis& a, const Policy& policy, const InnerOptimizer& optimizer,
                     bool has_position, std::int64_t members, std::int64_t tokens, FormChoice wanted) {
  policy.check();
  const bool per_chunk = policy.update == Policy::Update::per_chunk;
  if (wanted != FormChoice::primal && !a.members.empty()) throw FormError(a.members);
  if (!per_chunk && wanted != FormChoice::primal && !a.independent.empty()) throw FormError(a.independent);
  if (!per_chunk && policy.chunk != 1 && optimizer.moves_gradient_point())
    throw ConfigError(
        "[policy] the optimiser moves the point where the "
        "gradient is taken by each token's own gate, so the "
        "gradient must be taken token by token: use chunk = 1");

  const auto first = [](std::initializer_list<std::string> reasons) {
    for (const std::string& r : reasons)
      if (!r.empty()) return r;
    return std::string();
  };
  const auto unless = [](bool fine, const char* why) { return fine ? std::string() : std::string(why); };
  const std::string meta = unless(policy.meta != Policy::Meta::truncated,
                                  "the meta-gradient is cut between chunks, which must therefore exist");
  struct Candidate {
    FormChoice form;
    std::string why;
  };
  std::vector<Candidate> candidates;  // those that do most at once first
  if (per_chunk) {
    const std::string steps =
        unless(policy.steps == 1, "each chunk makes several steps, one after the other");
    const std::string one_chunk = unless(policy.chunk != Policy::kWholeSequence && tokens > policy.chunk,
                                         "the whole sequence is one chunk: there is nothing to do at once");
    candidates = {{FormChoice::parallel,
                   first({a.independent, a.factors, a.degree_zero, a.linear_step, steps, meta, one_chunk})},
                  {FormChoice::chunk_parallel,
                   first({a.independent, a.factors, a.degree_zero, a.split_step, steps, meta, one_chunk})},
                  {FormChoice::dual, first({a.independent, a.factors})},
                  {FormChoice::primal, {}}};
    if (wanted == FormChoice::wy)
      throw FormError("[form] wy is for a step per token; this policy makes one per chunk");
  } else {
    const std::string place =
        unless(!has_position, "the position rates count from the beginning of each chunk");
    const std::string online = unless(
        policy.chunk == 1,
        "the tokens of a chunk have their gradients taken at the same weights: there is nothing to solve");
    const std::string full =
        unless(policy.meta == Policy::Meta::full, "the solve cannot tell the meta-gradient's parts apart");
    candidates = {{FormChoice::parallel, first({a.factors, a.degree_zero, a.linear_step, place, meta})},
                  {FormChoice::wy, first({a.factors, a.linear_step, online, a.affine_use, place, full})},
                  {FormChoice::dual, first({a.factors, a.linear_step})},
                  {FormChoice::primal, {}}};
    if (wanted == FormChoice::chunk_parallel)
      throw FormError("[form] chunk-parallel is for a step per chunk; this policy makes one per token");
  }

  FormPlan plan;
  for (const Candidate& c : candidates) {
    if (wanted != FormChoice::automatic && wanted != c.form) continue;
    if (!c.why.empty()) {
      if (wanted == c.form) throw FormError(fmt::format("[form] {} is impossible: {}", name(c.form), c.why));
      plan.refused.push_back({c.form, c.why});
      continue;
    }
    const bool slower =
        per_chunk && ((c.form == FormChoice::parallel && policy.chunk > kFewTokens) ||
                      (c.form == FormChoice::chunk_parallel && (members > 1 || !plan.slower.empty())));
    if (wanted == FormChoice::automatic && slower) {
      plan.slower.push_back(c.form);
      continue;
    }
    plan.form = c.form;
    return plan;
  }
  return plan;
}

}  // namespace nestgrad::ttt
