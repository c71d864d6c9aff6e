// From linear attention to TTT-Linear, a part at a time ('Learning to (learn at test time)', Sun et al. 2024: Table 1);
// the size of a mini-batch (Figure 7); and what a step does to the inner loss (Figure 4).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reproduce/claims.h"
#include "reproduce/experiments/catalogue.h"
#include "reproduce/experiments/ladder_ttt_rows.h"
#include "reproduce/statistics.h"
#include "ttt/claim.h"
#include "ttt/explain.h"

namespace nestgrad::reproduce {

namespace {

using namespace ladder;

// Figure 4: of each layer what a token's own step does to its loss, and how what was learnt from the sequence pays more
// and more: the slope, over the whole context, of the loss at W0 less that at W_t.
void add_inner_losses(const Validation& v, Measured& out) {
  std::vector<double> steps, rises;
  for (const Validation::Inner& layer : v.inner) {
    const std::size_t time = layer.after.size();
    std::vector<double> place(time), gap(time);
    double own = 0;
    for (std::size_t t = 0; t < time; ++t) {
      place[t] = static_cast<double>(t) / static_cast<double>(time);
      gap[t] = layer.initial[t] - layer.after[t];
      own += (layer.after[t] - layer.before[t]) / static_cast<double>(time);
    }
    const double slope_of_gap = slope(place, gap);
    out.numbers["a token's step, " + layer.layer] = own;
    out.numbers["slope of the gap, " + layer.layer] = slope_of_gap;
    steps.push_back(own), rises.push_back(slope_of_gap);
    out.curves[layer.layer + ", at W0"] = binned(layer.initial, 32);
    out.curves[layer.layer + ", before its step"] = binned(layer.before, 32);
    out.curves[layer.layer + ", after its step"] = binned(layer.after, 32);
  }
  out.numbers["a token's step, at most"] = largest_of(steps);
  out.numbers["slope of the gap, at least"] = least_of(rises);
}

Measured run(const Task& task) {
  Measured out;
  const auto row = std::ranges::find(all_rows(), task.row, &Row::name);
  const LanguageRun r = run_of(*row, task.settings);
  const std::unique_ptr<Trainer> trainer = trainer_of(r, task);
  const std::vector<double> losses = train(*trainer, r, task, out);
  const bool every_step = row->name == rung(2) || row->name == rung(3);  // these are compared
  out.curves["training loss"] = every_step ? losses : binned(losses, 50);
  const Validation v = measure(*trainer, r, out);
  if (row->mini_batch == 1) add_inner_losses(v, out);
  if (row->name == rung(3)) {
    const Apart apart = apart_in_f64(function_of(r), function_of(run_of(all_rows()[1], task.settings)),
                                     trainer->parameters(), trainer->validation_windows(1));
    out.numbers["losses apart from row 2 (f64)"] = apart.losses;
    out.numbers["gradients apart from row 2 (f64)"] = apart.gradients;
  }
  return out;
}

// ---- what must come out ----

constexpr double kOfF64 = 1e-12, kOfF32 = 1e-6;

// Row 3 beside row 2: the largest of all seeds.
struct Equivalence {
  std::size_t seeds = 0;
  double losses = 0, gradients = 0;      // in f64, relative
  double first_step = 0, all_steps = 0;  // of training, in f32: difference of the training loss
};

Equivalence equivalence(const Results& results) {
  Equivalence out;
  for (const std::uint64_t seed : results.seeds()) {
    const Measured *two = results.finished(rung(2), seed), *three = results.finished(rung(3), seed);
    if (!two || !three) continue;
    ++out.seeds;
    out.losses = worse(out.losses, three->numbers.at("losses apart from row 2 (f64)"));
    out.gradients = worse(out.gradients, three->numbers.at("gradients apart from row 2 (f64)"));
    const std::vector<double>&a = two->curves.at("training loss"), &b = three->curves.at("training loss");
    const std::vector<double> apart = less(a, b);
    out.first_step = worse(out.first_step, std::abs(apart.front()));
    for (const double x : apart) out.all_steps = worse(out.all_steps, std::abs(x));
  }
  return out;
}

// The loss of a row less another's, of one seed; kUnknown where one is missing.
double step_between(const Results& results, std::uint64_t seed, std::size_t before, std::size_t after) {
  return results.number(rung(after), seed, "loss") - results.number(rung(before), seed, "loss");
}

std::vector<DeclaredClaim> claims() {
  const auto improves = [](std::size_t number, const std::string& what) {
    return below(rung(number), rung(number - 1), "loss",
                 fmt::format("row {}: {} lowers the loss", number, what));
  };
  return {
      exact("row 3 is row 2: losses and gradients in f64 to 1e-12, the first training loss to 1e-6",
            [](const Results& results) {
              const Equivalence e = equivalence(results);
              if (e.seeds == 0) return Exact{};
              return Exact{e.losses <= kOfF64 && e.gradients <= kOfF64 && e.first_step <= kOfF32,
                           fmt::format("losses {:.2g}, gradients {:.2g}, first training loss {:.2g}",
                                       e.losses, e.gradients, e.first_step),
                           results.seeds().size() - e.seeds};
            }),
      within(rung(4), rung(3), "loss", 0.02, "row 4: a learnable W0 changes the loss by less than 0.02"),
      improves(5, "LN and residual in f"),
      improves(6, "mini-batches of 16"),
      improves(7, "a learnable rate"),
      improves(8, "the Mamba-like backbone"),
      negative("mini-batches are the largest step of the inner loop (rows 4 to 7)",
               "nats beyond the next largest",
               [](const Results& results, std::uint64_t seed) {
                 std::vector<double> others;
                 for (const std::size_t number : {4, 5, 7})
                   others.push_back(step_between(results, seed, number - 1, number));
                 return step_between(results, seed, 5, 6) - least_of(others);
               }),
      negative("the loss rises with the size of the mini-batch (Spearman's correlation is positive)",
               "(its negative)",
               [](const Results& results, std::uint64_t seed) {
                 std::vector<double> rank, loss;
                 for (const std::int64_t b : kMiniBatches) {
                   rank.push_back(static_cast<double>(rank.size()));
                   loss.push_back(results.number(name_of(b), seed, "loss"));
                   if (std::isnan(loss.back())) return kUnknown;
                 }
                 return -spearman(rank, loss);
               }),
      negative("mini-batches of 1: its own step lowers a token's inner loss, in every layer", "(the least)",
               [](const Results& results, std::uint64_t seed) {
                 return results.number(name_of(1), seed, "a token's step, at most");
               }),
      negative("mini-batches of 1: the gap to the inner loss at W0 grows along the sequence, in every layer",
               "(the negative of the least slope)", [](const Results& results, std::uint64_t seed) {
                 return -results.number(name_of(1), seed, "slope of the gap, at least");
               })};
}

// ---- the page ----

std::string difference_of(double before, double after) {
  return std::isnan(before) || std::isnan(after) ? "" : fmt::format("{:+.3f}", std::log(after / before));
}

ReportView ladder_view(const Results& results) {
  Table table{"Table 1",
              {"row", "paper, perplexity (Table 1)", "paper, difference (nats)", "ours, nats per byte",
               "ours, difference to the row before", "form that runs it"}};
  Intervals picture{"Difference to the row before (below 0: better)",
                    "nats per byte; the paper's: nats per token"};
  picture.line = 0, picture.reference_name = "paper, Table 1";
  const std::vector<Row> rows = table_1();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i > 0)
      add_difference(picture, results, rows[i].name, rows[i - 1].name, "loss",
                     std::log(rows[i].perplexity / rows[i - 1].perplexity));
    const ttt::Explanation e = ttt::explain(system_of(rows[i]), {.heads = 2, .dim = 32, .time = 64});
    table.rows.push_back({rows[i].name, fmt::format("{:.2f}", rows[i].perplexity),
                          i ? difference_of(rows[i - 1].perplexity, rows[i].perplexity) : "",
                          mean_text(results.of(rows[i].name, "loss")),
                          i ? difference_text(results, rows[i].name, rows[i - 1].name, "loss") : "",
                          std::string(ttt::name(e.plan.form))});
  }
  return {
      .id = "ladder",
      .title = "From linear attention to TTT-Linear",
      .question = "Which part of the layer pays for itself?",
      .reading =
          "Linear attention is a matrix that takes one gradient step for each token; every row adds a part. Rows 3 to "
          "5 learn from the whole sequence as one mini-batch: all gradients are taken at W0, and token t reads what "
          "those up to t have made of it, W0 - rate (g_1 + .. + g_t). From row 6 on they are taken where the "
          "token's mini-batch of 16 began.\n\n"
          "What differs from the paper: bytes instead of the Pile's tokens, a thousandth of the parameters, and a few "
          "hundred steps of AdamW with the paper's settings (3e-3, no row with a rate of its own). The loss is the "
          "paper's |f(k) - v|^2. It does not print the fixed rate of rows 5 and 6. Here the rate from row 5 on is divided by the "
          "dimension of a head, as in the published program: 1/2 of that in rows 5 and 6, which is where the learnable rate, "
          "a sigmoid, starts. (The equations do not divide; on a seed that is not among these, row 6 was then 0.2 nats "
          "worse. The program's further factor 1/i for the i-th token of a mini-batch is left out.) "
          "All rows rotate q and k by their place in the "
          "context, as the Transformer has it into which the paper builds its layers; without places a memory of bytes hardly "
          "learns more than pairs of them. A "
          "difference of logarithms of the paper's perplexities is for a token, ours is for a byte: signs and order "
          "can be compared, sizes cannot.\n\n"
          "The last row adds convolutions, from which a model of bytes may gain more than a model of tokens.",
      .pictures = {table, picture}};
}

ReportView equivalence_view(const Results& results) {
  const Equivalence e = equivalence(results);
  Table table{"Row 3 beside row 2, the largest difference of all seeds", {"what", "difference"}};
  table.rows = {{"trained network in f64: loss of a token, relative", format_number(e.losses)},
                {"trained network in f64: a gradient, relative", format_number(e.gradients)},
                {"training in f32: first loss, nats", format_number(e.first_step)},
                {"training in f32: any loss, nats", format_number(e.all_steps)}};
  return {
      .id = "equivalence",
      .title = "Batch gradient descent is linear attention",
      .question = "Is TTT with a linear model, a whole mini-batch and W0 = 0 linear attention?",
      .reading =
          "At W = 0 the gradient of |k W - v|^2 is -2 k' v, and with rate 1/2 the step of a token adds k' v: "
          "what linear attention adds. Both rows have the same parameters, so the network that row 3 has trained is "
          "read with both learners in f64. In training, f32, the two make their sums in another order; what "
          "rounding makes of that grows from step to step, as it would between two machines.",
      .pictures = {table}};
}

ReportView mini_batch_view(const Results& results) {
  Chart chart{"Loss by mini-batch", "tokens in a mini-batch", "loss (nats per byte)"};
  chart.log_x = true;
  Table table{"Figure 7", {"mini-batch", "loss (nats per byte)", "tokens a second, here, in training"}};
  Series series{"row 7", {}, {}};
  const double context = results.settings().full() ? 512 : 256;
  for (const std::int64_t b : kMiniBatches) {
    const std::vector<double> losses = results.of(name_of(b), "loss");
    const double size = b == ttt::Policy::kWholeSequence ? context : static_cast<double>(b);
    table.rows.push_back({fmt::format("{:.0f}", size), mean_text(losses),
                          format_number(results.clock(name_of(b), "tokens/s"))});
    add_mean(series, size, losses);
  }
  chart.series.push_back(series);
  return {
      .id = "mini-batch",
      .title = "The size of a mini-batch",
      .question = "What does it cost to take gradients of many tokens at the same weights?",
      .reading =
          "The fewer tokens have their gradients taken at the same weights, the more steps the inner loop makes "
          "one after the other. The paper finds that smaller is better, and that time has a minimum in "
          "between; it prints no numbers, so there is no column of them. Tokens a second depend on the machine.",
      .pictures = {chart, table}};
}

ReportView inner_loss_view(const Results& results) {
  ReportView view{
      .id = "inner-loss",
      .title = "What a step does to the inner loss",
      .question = "Does the inner loop learn?",
      .reading =
          "Mini-batches of 1. For each token the inner loss with the first weights W0, with those "
          "before its own step, W_(t-1), and with those after it, W_t; means over validation windows, "
          "seeds and parts of the context. The paper shows (Figure 4) that a step lowers the token's "
          "loss and that the gap to W0 grows along the sequence. It draws a moving average over 10 tokens."};
  const auto seeds = results.curves(name_of(1), "training loss").size();
  for (const std::string layer : {"layers.0", "layers.1"}) {
    Chart chart{"Inner loss, " + layer, "place in the context", "|f(k) - v|^2"};
    for (const std::string which : {", at W0", ", before its step", ", after its step"}) {
      const auto curves = results.curves(name_of(1), layer + which);
      std::vector<double> place;  // of the context's equal parts
      for (std::size_t i = 0; !curves.empty() && i < curves[0].size(); ++i)
        place.push_back((static_cast<double>(i) + 0.5) / static_cast<double>(curves[0].size()));
      chart.series.push_back(mean_line(which.substr(2), place, curves));
    }
    view.pictures.emplace_back(std::move(chart));
  }
  Table table{"Mini-batches of 1",
              {"layer", "after less before its step", "slope of the gap to W0, over the context"}};
  if (seeds > 0)
    for (const std::string layer : {"layers.0", "layers.1"})
      table.rows.push_back({layer, mean_text(results.of(name_of(1), "a token's step, " + layer)),
                            mean_text(results.of(name_of(1), "slope of the gap, " + layer))});
  view.pictures.emplace_back(std::move(table));
  return view;
}

std::vector<ReportView> views(const Results& results) {
  return {ladder_view(results), equivalence_view(results), mini_batch_view(results),
          inner_loss_view(results)};
}

}  // namespace

Experiment ladder_ttt() {
  return {
      .name = "ladder-ttt",
      .title = "From linear attention to TTT-Linear",
      .shows =
          "what each part of a TTT layer adds to linear attention, the size of its mini-batches, and what "
          "a step does to the inner loss",
      .source = "Learning to (learn at test time), Sun et al. 2024, Table 1, Figures 4 and 7",
      .quick_minutes = 5,
      .full_minutes = 21,
      .rows =
          [](const Settings&) {
            std::vector<std::string> out;
            for (const Row& row : all_rows()) out.push_back(row.name);
            return out;
          },
      .run = run,
      .claims = claims(),
      .views = views};
}

}  // namespace nestgrad::reproduce
