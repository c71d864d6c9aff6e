#include "ttt/explain.h"

#include <fmt/format.h>

namespace nestgrad::ttt {

std::string_view meaning(FormChoice form, const Policy& policy) {
  const bool per_chunk = policy.update == Policy::Update::per_chunk;
  switch (form) {
    case FormChoice::parallel:
      return per_chunk ? "plain linear attention with a mask of chunks: no factor "
                         "of a gradient depends on a learning weight and the step "
                         "is linear, so all tokens are worked on at once"
                       : "linear attention: no factor of a gradient depends "
                         "on a learning weight and the step is linear, so "
                         "blocks of any length are worked on at once";
    case FormChoice::wy:
      return "the gradients of a block solve one "
             "triangular system (WY form): each depends "
             "on the weight linearly, through one use";
    case FormChoice::chunk_parallel:
      return "all chunks at once: no factor of a gradient depends on a learning "
             "weight, so what the optimiser makes of the chunks' gradients is "
             "computed for all of them and the weights are a running sum";
    case FormChoice::dual:
      return per_chunk ? "recurrent, chunk after chunk; each chunk's gradient from its factors"
                       : "recurrent, chunk after chunk; inside a chunk "
                         "gradients are outer products and the weights "
                         "they give are applied as masked attention";
    case FormChoice::primal:
      return per_chunk ? "recurrent, chunk after chunk; gradients taken whole"
                       : "recurrent; the weights of every token are materialised";
    case FormChoice::automatic:
      break;
  }
  return "";
}

Explanation explain(const Learner& given, const Weights& start, const Views& views,
                    const InnerLoopOptions& options) {
  const Policy& policy = options.policy;
  const Trained trained = restrict_to(given, State::start(given, start), policy.trained);
  const Learner& learner = *trained.learner;
  const std::int64_t time = views.k.dim(2), tokens = std::min(policy.chunk_of(time), time);
  const auto cut = [&](Tensor x) { return slice(x, 2, 0, tokens); };
  Block block{
      tokens == time ? views.q : cut(views.q), cut(views.k), cut(views.v), {}, views.position, true, {}};
  for (const auto& [name, rows] : views.gates) block.gates[name] = cut(rows);

  Explanation out;
  const Learner::Description text = given.describe();
  const InnerOptimizer optimizer = learner.optimizer();
  out.model = text.model;
  out.loss = text.loss;
  out.optimizer = optimizer.str();
  out.policy = policy;
  out.stops_gradients = optimizer.stops_gradients();
  out.analysis = analyse(learner, policy, trained.start, block);
  out.plan = choose_form(out.analysis, policy, optimizer, views.position.defined(),
                         views.k.dim(0) * views.k.dim(1), time, options.form);
  for (std::size_t i = 0; i < trained.start.weights.size(); ++i) {
    const FastWeight& w = trained.start.weights.at(i);
    out.uses.push_back(fmt::format("{}: {}", w.name,
                                   w.kind == WeightKind::row      ? "a row, spread over tokens"
                                   : out.analysis.uses[i].empty() ? "not as rows x W"
                                                                  : out.analysis.uses[i]));
  }
  return out;
}

Explanation explain(const System& system, const ProgramSizes& sizes, FormChoice wanted) {
  Explanation out;
  trace_system(system, sizes, DType::f64, [&](const SystemProgram& p) {
    out = explain(*p.learner, p.start, p.views, {.policy = p.policy, .form = wanted});
    return std::vector<Tensor>{p.views.k};
  });
  return out;
}

std::string Explanation::str() const {
  std::string text = fmt::format("model      {}\ninner loss {}\noptimiser  {}\npolicy     {}\n", model, loss,
                                 optimizer, policy.str());
  for (std::size_t i = 0; i < uses.size(); ++i)
    text += fmt::format("{}{}\n", i ? "           " : "uses       ", uses[i]);
  text += fmt::format("form       {}: {}\n", name(plan.form), meaning(plan.form, policy));
  for (FormChoice form : plan.slower)
    text += fmt::format("possible   {}: {}; slower at this shape\n", name(form), meaning(form, policy));
  for (const FormPlan::Refusal& r : plan.refused) text += fmt::format("not {}: {}\n", name(r.form), r.why);
  return text;
}

}  // namespace nestgrad::ttt
