#include "ttt/explain.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/plan/dependence.h"

namespace nestgrad::ttt {

Explanation explain(const Learner& given, const Weights& start, const Views& views,
                    const InnerLoopOptions& options) {
  const Policy& policy = options.policy;
  const Trained trained = restrict_to(given, State::start(given, start), policy.trained);
  const DerivedLearner derived(*trained.learner, policy, trained.start, views);

  Explanation out;
  const Learner::Description text = given.describe();
  out.model = text.model;
  out.loss = text.loss;
  if (out.loss.empty()) {
    const LearnerTrace& loss = derived.loss(trained.start.weights, views.k.spec(), views.v.spec());
    out.loss = is_default_loss(loss.output_tensor())
                   ? "1/2 |f(k) - v|^2"
                   : fmt::format("as loss() says: {}", loss.describe_output());
  }
  out.optimizer = derived.optimizer().str();
  out.policy = policy;
  out.plan = choose_form(derived, options.form);
  for (std::size_t i = 0; i < trained.start.weights.size(); ++i) {
    const FastWeight& w = trained.start.weights.at(i);
    out.uses.push_back(fmt::format("{}: {}", w.name,
                                   w.kind == WeightKind::row   ? "a row, spread over tokens"
                                   : derived.uses()[i].empty() ? "not as rows x W"
                                                               : derived.uses()[i]));
  }
  return out;
}

std::vector<std::string> unread_gates(const SystemProgram& program) {
  const std::int64_t time = program.views.k.dim(2);
  if (!program.policy.writes(std::min(time, program.policy.chunk_of(time)), time))
    return {};  // nothing is learnt here
  Views views = program.views;
  for (auto& [name, rows] : views.gates) rows = probe(rows);  // a node of its own
  const InnerLoopResult result =
      train_along(*program.learner, program.start, views, {.policy = program.policy});
  std::vector<Tensor> made = result.state.flat();
  made.push_back(result.output);
  const std::deque<GraphNode>& nodes = result.output.graph().nodes();
  std::vector<std::string> out;
  for (const auto& [name, rows] : views.gates) {
    std::vector<char> marked(nodes.size(), 0);
    marked[static_cast<std::size_t>(rows.id())] = 1;
    const std::vector<char> found = dependents(nodes, marked, Follow::values);
    if (std::ranges::none_of(made,
                             [&](const Tensor& t) { return found[static_cast<std::size_t>(t.id())] != 0; }))
      out.push_back(name);
  }
  return out;
}

Explanation explain(const System& system, const ProgramSizes& sizes, FormChoice wanted, std::int64_t slices) {
  Explanation out;
  trace_system(system, sizes, DType::f64, [&](const SystemProgram& p) {
    const InnerLoopOptions options{.policy = p.policy, .form = wanted};
    out = explain(*p.learner, p.start, p.views, options);
    for (const auto& [name, rows] : p.views.gates) out.gates.push_back(name);
    out.unread_gates = unread_gates(p);
    if (slices > 1) {
      if (sizes.time % slices != 0)
        throw ConfigError(fmt::format("[explain] {} tokens cannot be cut into {} slices of one length",
                                      sizes.time, slices));
      out.slices = choose_slices(system, {sizes.heads, sizes.dim, sizes.chunk}, *p.learner, p.start,
                                 part(p.views, 0, sizes.time / slices), options, slices, system.name);
    }
    return std::vector<Tensor>{p.views.k};
  });
  return out;
}

std::string Explanation::str() const {
  std::string text = fmt::format("model      {}\ninner loss {}\noptimiser  {}\npolicy     {}\n", model, loss,
                                 optimizer, policy.str());
  if (!gates.empty())
    text += fmt::format(
        "gates      {}{}\n", fmt::join(gates, ", "),
        unread_gates.empty() ? "" : fmt::format("; nothing reads {}", fmt::join(unread_gates, ", ")));
  for (std::size_t i = 0; i < uses.size(); ++i)
    text += fmt::format("{}{}\n", i ? "           " : "uses       ", uses[i]);
  const auto meaning = [&](FormChoice form) { return row_of(form, policy.update).sentence; };
  text += fmt::format("form       {}: {}\n", name(plan.form), meaning(plan.form));
  for (FormChoice form : plan.slower)
    text += fmt::format("possible   {}: {}; slower at this shape\n", name(form), meaning(form));
  for (const FormPlan::Refusal& r : plan.refused) text += fmt::format("not {}: {}\n", name(r.form), r.why);
  if (slices) text += slices->str();
  return text;
}

}  // namespace nestgrad::ttt
