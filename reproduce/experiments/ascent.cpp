// Gradient ascent is a symmetry of inner-product learners ('Test-time training with KV binding is secretly linear
// attention', section 4, reports that ascent trains as well as descent and calls it a paradox).
#include <fmt/format.h>

#include "reproduce/claims.h"
#include "reproduce/experiments/catalogue.h"
#include "reproduce/language_runs.h"
#include "ttt/claim.h"

namespace nestgrad::reproduce {

namespace {

// A learner trained three ways: by descent; by ascent from the same start; by ascent from the mirrored start.
struct Case {
  std::string name, learner;
  std::int64_t window;  // of attention beside it; 0: none
};
const std::vector<Case> kCases{{"LaCT", "lact", 0},
                               {"LaCT, window attention beside it", "lact", 64},
                               {"A matrix with squared error", "naive", 0}};
const std::string kDescent = ": descent", kMirrored = ": ascent, mirrored start";

// Squared error in the place of the inner product: a matrix, 1/2 |k W - v|^2.
ttt::System squared_error() {
  return {.name = "squared-error",
          .title = "a matrix with squared error",
          .gates = {{.name = "rate", .shape = [](Tensor raw) { return 0.25 * sigmoid(raw); }}},
          .learner =
              [](const Params& p, const ttt::SystemSizes& s) {
                return std::make_unique<ttt::Composed>(
                    ttt::linear(p, {.heads = s.heads, .in = s.dim, .out = s.dim}), ttt::half_squared_error());
              },
          .policy = [](const ttt::SystemSizes& s) { return ttt::Policy{.chunk = s.chunk}; },
          .prepare =
              [](ttt::Views& views) {
                views.q = l2_norm(views.q);
                views.k = l2_norm(views.k);
              }};
}

LanguageRun run_of(const Case& c, bool ascent, const Settings& settings) {
  LanguageRun run;
  run.model = model_of(64, 2, 2, 64);
  run.model.attention_window = c.window;
  run.system = c.learner == "naive" ? squared_error() : ttt::system_named(c.learner);
  if (ascent) run.system = with_policy(*run.system, [](ttt::Policy& policy) { policy.ascent = true; });
  run.context = 256;
  run.steps = settings.full() ? 1000 : 200;
  return run;
}

// The start whose last inner matrix, and what undoes its sign behind the layer, have the other sign.
StateDict mirrored(StateDict params, const Case& c) {
  const std::vector<std::string> turned{c.learner == "naive" ? ".W" : ".W1",
                                        c.window > 0 ? "post_norm.weight" : "o_proj.weight"};
  std::size_t found = 0;
  for (auto& [name, value] : params)
    for (const std::string& end : turned)
      if (name.ends_with(end)) {
        value = value.clone();
        for (float& x : value.as<float>()) x = -x;
        ++found;
      }
  if (found != 4)
    throw ConfigError(fmt::format("[ascent] {} of 4 parameters to be mirrored were found", found));
  return params;
}

Measured run(const Task& task) {
  Measured out;
  for (const Case& c : kCases)
    for (const bool ascent : {false, true})
      if (task.row == c.name + (ascent ? kMirrored : kDescent)) {
        const LanguageRun r = run_of(c, ascent, task.settings);
        const std::unique_ptr<Trainer> trainer = trainer_of(r, task);
        if (ascent) trainer->start_from(mirrored(trainer->parameters(), c));
        out.curves["training loss"] = train(*trainer, r, task, out);
        measure(*trainer, r, out);
      }
  return out;
}

// Of each step of each seed: how many losses are the same bits, and the first that is not.
struct Agreement {
  std::size_t steps = 0, same = 0;
  double largest = 0;
  std::size_t diverged = 0;  // pairs of which a run is not finite
};

Agreement agreement(const Results& results, const Case& c) {
  Agreement out;
  for (const std::uint64_t seed : results.seeds()) {
    const Measured *down = results.find(c.name + kDescent, seed),
                   *up = results.find(c.name + kMirrored, seed);
    if (!down || !up) continue;
    if (down->failed() || up->failed()) {
      ++out.diverged;
      continue;
    }
    const std::vector<double>&a = down->curves.at("training loss"), &b = up->curves.at("training loss");
    for (const double apart : less(a, b)) {
      ++out.steps;
      out.same += apart == 0;
      out.largest = worse(out.largest, std::abs(apart));
    }
    ++out.steps;
    out.same += down->numbers.at("loss") == up->numbers.at("loss");
  }
  return out;
}

DeclaredClaim bits(const Case& c, bool same) {
  return exact(fmt::format("{}: every loss of ascent from the mirrored start {} the bits of descent's",
                           c.name, same ? "has" : "has not"),
               [=](const Results& results) {
                 const Agreement a = agreement(results, c);
                 const std::string shown =
                     fmt::format("{} of {} losses are the same bits; largest difference {:.3g}", a.same,
                                 a.steps, a.largest);
                 if (a.steps == 0) return Exact{std::nullopt, a.diverged > 0 ? "all runs diverged" : ""};
                 return Exact{same == (a.same == a.steps), shown, a.diverged};
               });
}

std::vector<ReportView> views(const Results& results) {
  Table table{
      "Ascent from the mirrored start beside descent",
      {"learner", "descent, nats", "ascent, nats", "losses that are the same bits", "largest difference"}};
  Chart chart{"Training loss, first seed", "step", "loss (nats per byte)"};
  for (const Case& c : kCases) {
    const Agreement a = agreement(results, c);
    table.rows.push_back({c.name, mean_text(results.of(c.name + kDescent, "loss")),
                          mean_text(results.of(c.name + kMirrored, "loss")),
                          fmt::format("{} of {}", a.same, a.steps), format_number(a.largest)});
    for (const std::string& row : {c.name + kDescent, c.name + kMirrored})
      if (const auto curves = results.curves(row, "training loss"); !curves.empty()) {
        chart.series.push_back(step_line(row, curves[0]));
      }
  }
  return {
      {.id = "symmetry",
       .title = "The symmetry",
       .question = "Why does climbing the inner loss train as well as descending it?",
       .reading =
           "Take f(x) = phi(x; W0, W2) W1 with the loss -<f(k), v>, as LaCT has it. The gradient with respect to W1, "
           "-phi(k)' v, does not see W1; those with respect to W0 and W2 are odd in W1. Start once from (W0, W1, W2) "
           "and descend, and once from (W0, -W1, W2) and ascend: after every step W0 and W2 are the same in both, and "
           "W1 is the other's negative. Momentum, Newton-Schulz, weight norms and rates respect the sign. So the layer "
           "answers exactly the negative, which a sign of the projection behind it undoes, and AdamW, whose step is odd "
           "in the gradient, keeps the mirror through training.\n\n"
           "So ascent is no other algorithm: from a start that is drawn symmetrically it is the same experiment with "
           "another seed, and a difference between the two in a table is what the table's noise is. With squared error, "
           "1/2 |f(k) - v|^2, the gradient sees W1 and the symmetry is gone.",
       .pictures = {table, chart}},
      {.id = "paper",
       .title = "The paper's rows",
       .reading =
           "Retrained with ascent, the paper found a perplexity of 16.19 (descent 16.43), 25.85 dB (25.94) and 79.61 % "
           "(79.34) (KV binding, section 4). By the symmetry these differences, of both signs, are of the size of its "
           "noise; the language model's branch joins window attention before the output projection, and there the mirror "
           "is the gain of the norm behind the learner, which does not start symmetrically: almost the same experiment."}};
}

}  // namespace

Experiment ascent() {
  return {
      .name = "ascent",
      .title = "Gradient ascent is a symmetry",
      .shows =
          "ascent of an inner-product learner is descent from the mirrored start, bit for bit; for squared "
          "error it is not",
      .source =
          "Test-time training with KV binding is secretly linear attention, section 4 (its ascent rows)",
      .quick_minutes = 1,
      .full_minutes = 12,
      .quick_seeds = 2,
      .full_seeds = 5,
      .rows =
          [](const Settings&) {
            std::vector<std::string> out;
            for (const Case& c : kCases) out.push_back(c.name + kDescent), out.push_back(c.name + kMirrored);
            return out;
          },
      .run = run,
      .claims = {bits(kCases[0], true), bits(kCases[1], true), bits(kCases[2], false)},
      .views = views};
}

}  // namespace nestgrad::reproduce
