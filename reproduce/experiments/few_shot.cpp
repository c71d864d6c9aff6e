// Few-shot regression of sines by meta-learning: MAML and its relatives; and training's own rates, found by gradient
// through a hundred steps.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "reproduce/claims.h"
#include "reproduce/experiments/catalogue.h"
#include "reproduce/experiments/few_shot_rates.h"
#include "reproduce/experiments/few_shot_sines.h"

namespace nestgrad::reproduce {

namespace {

constexpr std::int64_t kTasks = 25;  // of a step of the outer training, as in the paper
constexpr double kOuterRate =
    1e-2;  // the largest one: the best of .001, .003 and .01 for every row, with another seed, 1000

// Rows on sines. backward: through what the meta-gradient goes. own_rate: nothing in training fixes the rate of a step on
// a task, so it is chosen afterwards.
struct Method {
  const char *name, *backward;
  Training::ObjectiveFn objective;
  bool own_rate = false;
};
const std::vector<Method>& methods() {
  static const std::vector<Method> all{
      {"MAML", "one step, exactly", maml(sine_problem(), 1, false)},
      {"MAML, first order", "nothing: the step's gradient counts as a constant",
       maml(sine_problem(), 1, true)},
      {"Reptile", "nothing: the way that eight steps went", reptile(sine_problem(), 8)},
      {"implicit MAML", "the condition of a minimum (five steps of conjugate gradients)",
       implicit_maml(sine_problem(), 10, 10, 5), true},
      {"MAML, learned rates", "one step, exactly, and a rate for each weight",
       learned_rates(sine_problem(), 1)},
      {"pretraining", "nothing is adapted while training", pretraining_on_sines(), true}};
  return all;
}
constexpr const char *kPretraining = "pretraining", *kByGradient = "rate by gradient",
                     *kByGrid = "best rate of a grid";
constexpr int kShown[] = {0, 1, 5, 10};  // steps
constexpr double kMostShown = 1000;      // an error above it, and one that is not finite, counts as it

std::string error_after(int steps) { return fmt::format("error, {} step{}", steps, steps == 1 ? "" : "s"); }
constexpr const char* kLogError = "log error after 100 steps";
constexpr const char* kCurve = "error by step";

// Errors by step, each with the best rate for so many steps on tasks that are neither trained on nor tested.
std::vector<double> with_best_rates(const StateDict& params, std::uint64_t seed) {
  std::vector<double> least(kMostSteps + 1, std::numeric_limits<double>::infinity()), out(least);
  for (const double rate : {0.001, 0.003, 0.01, 0.03, 0.1}) {
    const std::vector<double> chosen = errors_by_step(params, rate, Purpose::choosing, seed),
                              tested = errors_by_step(params, rate, Purpose::testing, seed);
    for (std::size_t i = 0; i < out.size(); ++i)
      if (chosen[i] < least[i]) least[i] = chosen[i], out[i] = tested[i];
  }
  return out;
}

Measured run_method(const Method& method, const Task& task) {
  Measured out;
  Training training({.seed = task.seed, .adamw = {.beta2 = 0.99, .weight_decay = 0, .clip = 10}});
  training.add(sine_specs(kTasks, 2 * kPoints), method.objective);
  const std::int64_t steps = task.settings.full() ? 6000 : 3000;
  for (std::int64_t i = 0; i < steps; ++i) {
    training.step(
        0, sine_tasks(kTasks, 2 * kPoints, Purpose::training, static_cast<std::uint64_t>(i), task.seed),
        cosine_rate(i, steps, steps / 20, kOuterRate));
    if (task.progress) task.progress(static_cast<double>(i) / static_cast<double>(steps));
  }
  const StateDict params = training.parameters();
  std::vector<double> errors = method.own_rate
                                   ? with_best_rates(params, task.seed)
                                   : errors_by_step(params, kInnerRate, Purpose::testing, task.seed);
  // Steps with rates that were learnt for one of them can lead anywhere.
  for (double& error : errors) error = error < kMostShown ? error : kMostShown;
  for (const int shown : kShown) out.numbers[error_after(shown)] = errors[static_cast<std::size_t>(shown)];
  out.curves[kCurve] = errors;
  return out;
}

Measured run_rates(const Task& task) {
  Measured out;
  // Batches that are trained through: the grid has 25 pairs with 4 batches each.
  const int steps = 100;
  FoundRate found{};
  if (task.row == kByGradient)
    found = rate_by_gradient(steps, task.seed, out.curves["log error while searching"]);
  else found = rate_by_grid(task.seed);
  out.numbers["rate"] = found.rate, out.numbers["momentum"] = found.momentum;
  out.numbers[kLogError] = log_error(found, task.seed);
  return out;
}

Measured run(const Task& task) {
  const auto method =
      std::find_if(methods().begin(), methods().end(), [&](const Method& m) { return m.name == task.row; });
  Measured out = method == methods().end() ? run_rates(task) : run_method(*method, task);
  return out;
}

std::vector<DeclaredClaim> claims() {
  const std::string one = error_after(1), ten = error_after(10);
  return {
      below("MAML", kPretraining, one,
            "after one step MAML's error is below that of pretraining, by more than 1", 1),
      negative("the first-order meta-gradient keeps 80 % of what MAML gains over pretraining after one step "
               "(80 % of MAML's gain, less its own)",
               "",
               [one](const Results& results, std::uint64_t seed) {
                 const double none = results.number(kPretraining, seed, one);
                 return 0.8 * (none - results.number("MAML", seed, one)) -
                        (none - results.number("MAML, first order", seed, one));
               }),
      below("MAML, learned rates", "MAML", one, "learned rates lower MAML's error after one step"),
      negative("MAML's error falls on after the one step that it was trained for (after ten, less after one)",
               "",
               [=](const Results& results, std::uint64_t seed) {
                 return results.number("MAML", seed, ten) - results.number("MAML", seed, one);
               }),
      below("Reptile", kPretraining, ten, "after ten steps Reptile's error is below that of pretraining"),
      below("implicit MAML", kPretraining, ten,
            "after ten steps implicit MAML's error is below that of pretraining"),
      below(
          kByGradient, kByGrid, kLogError,
          "a rate and a momentum found by gradient through 100 steps are as good as the best of a grid, but for 10 % of "
          "the error",
          -0.1)};
}

ReportView sines(const Results& results) {
  Table table{"Error on new sines, mean squared",
              {"row", "the meta-gradient goes through", "0 steps", "1 step", "5 steps", "10 steps",
               "1 step, to pretraining"}};
  Chart chart{.title = "Error by steps on a new sine",
              .x_label = "steps",
              .y_label = "mean squared error",
              .log_y = true};
  std::vector<double> steps(kMostSteps + 1);
  std::iota(steps.begin(), steps.end(), 0.0);
  for (const Method& m : methods()) {
    std::vector<std::string> cells{m.name, m.backward};
    for (const int shown : kShown) {
      const std::vector<double> errors = results.of(m.name, error_after(shown));
      const bool away = !errors.empty() && std::ranges::max(errors) >= kMostShown;
      cells.push_back(away ? "a run has 1000 or more" : mean_text(errors));
    }
    cells.push_back(m.name == std::string(kPretraining)
                        ? ""
                        : difference_text(results, m.name, kPretraining, error_after(1)));
    table.rows.push_back(std::move(cells));
    if (Series line = mean_line(m.name, steps, results.curves(m.name, kCurve)); !line.x.empty())
      chart.series.push_back(std::move(line));
  }
  return {
      .id = "sines",
      .title = "A start from which a few steps are enough",
      .question = "How well is a new sine fitted from ten points, after so many gradient steps?",
      .reading =
          "A task is a sine with an amplitude from .1 to 5 and a phase from 0 to pi, seen at ten points of [-5, 5]; the "
          "network has two hidden layers of 40 ReLU units; a step on a task has the rate .01: as in Finn et al. 2017, "
          "section 5.1. Errors are means over 500 new sines at 50 other points each; a function that is 0 everywhere "
          "has an error of about 4.3.\n\n"
          "All rows see the same sines, 25 a step with 20 points each, for as many steps of AdamW with the same rates; "
          "the paper trains some ten times as long. MAML and its first-order form are trained for one step, Reptile "
          "and implicit MAML for many steps on a task, and all are measured along ten steps: so the first lead after one "
          "step, and the others have their chance later. Implicit MAML trains with a pull back to the start, but is "
          "measured without it, as all are. Steps are not equal in cost: one of implicit MAML takes ten steps and fifteen "
          "products with a Hessian on every task, one for the length of each step and five to solve with (ten steps, and not 16 "
          "as at first, for time: with 16, on these seeds, its claim held).\n\n"
          "Pretraining is the control: one network for all sines at once, which can only learn their mean. For each "
          "number of steps it has the best of five rates, chosen on other sines, and so has implicit MAML, whose training fixes no "
          "rate: both have a choice that MAML, its first-order form and Reptile, which keep the rate .01, do not have. With learned rates each weight has one, trained with the start for one step; nothing keeps "
          "such rates small enough for many steps, so its error may rise again behind the first: 1000 stands for every error "
          "that is larger, or no number at all.\n\n"
          "The paper shows its errors as curves, without a table, so no figure of it stands here.",
      .pictures = {table, chart}};
}

ReportView rates(const Results& results) {
  Table table{"Rates of 100 steps of training",
              {"row", "rate", "momentum", "log of the error", "to the grid"}};
  for (const char* row : {kByGradient, kByGrid})
    table.rows.push_back({row, mean_text(results.of(row, "rate")), mean_text(results.of(row, "momentum")),
                          mean_text(results.of(row, kLogError)),
                          row == kByGrid ? "" : difference_text(results, row, kByGrid, kLogError)});
  Chart chart{"The search by gradient, first seed", "step of the search", "log error of eight new problems"};
  if (const auto curves = results.curves(kByGradient, "log error while searching"); !curves.empty())
    chart.series.push_back(step_line(kByGradient, curves[0], 0));
  return {
      .id = "rates",
      .title = "Rates by gradient through training",
      .question = "Can training's own rate and momentum be learnt by descending the error at its end?",
      .reading =
          "A problem is a small network that fits two sines from 20 points in 100 steps of gradient descent with "
          "momentum; what counts is the error at 20 other points in the end. The derivative of its logarithm by rate and "
          "momentum goes through all 100 steps; every tenth state is kept and those between are computed again, which "
          "changes no bit. The search descends for 100 steps of eight new problems each, from the rate .01 and the "
          "momentum .5. The grid has five rates from .003 to .3 with five momenta from 0 to .95, judged by as many "
          "problems in all. Both are compared on 256 problems that neither has seen.\n\n"
          "The search pays for derivatives, about three times the cost of training alone, and moves between the "
          "grid's points; near the largest stable rate the derivative through many steps becomes large, "
          "and clipping it is what keeps the search there.",
      .pictures = {table, chart}};
}

}  // namespace

Experiment few_shot() {
  return {
      .name = "few-shot",
      .title = "Few-shot sines, and rates by gradient",
      .shows =
          "meta-gradients, exact, first-order and implicit, find starts from which one to ten steps fit a new task; and "
          "rates of training are found by gradient through all its steps",
      .source = "Finn et al. 2017, section 5.1; Nichol et al. 2018; Rajeswaran et al. 2019; Li et al. 2017",
      .quick_minutes = 2,
      .full_minutes = 5,
      .data = Data::drawn,
      .rows =
          [](const Settings&) {
            std::vector<std::string> out = names_of(methods());
            out.emplace_back(kByGradient), out.emplace_back(kByGrid);
            return out;
          },
      .run = run,
      .claims = claims(),
      .views =
          [](const Results& results) {
            return std::vector<ReportView>{sines(results), rates(results)};
          }};
}

}  // namespace nestgrad::reproduce
