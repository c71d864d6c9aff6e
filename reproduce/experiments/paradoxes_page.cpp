#include "reproduce/experiments/paradoxes_page.h"

#include <algorithm>
#include <tuple>

#include "reproduce/claims.h"

namespace nestgrad::reproduce {

namespace {

using namespace paradox;

std::vector<std::string> paper_row(const Results& results, const std::string& row, const std::string& paper,
                                   const std::string& paper_difference, const std::string& baseline) {
  return {row, paper, paper_difference, mean_text(results.of(row, "loss")),
          row == baseline ? "" : difference_text(results, row, baseline, "loss")};
}

Table trained_table(const Results& results) {
  return {"Retrained: nats per byte",
          {"row", "the paper's perplexity (section 4)", "the paper, in nats", "ours",
           "ours, difference to its baseline"},
          {paper_row(results, kLact, "16.43", "", kLact),
           paper_row(results, kLactAscent, "16.19", "-0.0147", kLact),
           paper_row(results, kLactKey, "16.18", "-0.0153", kLact),
           paper_row(results, kSoftmax, "", "", kSoftmax), paper_row(results, kSoftmaxKey, "", "", kSoftmax),
           paper_row(results, kLinear, "", "", kLinear), paper_row(results, kLinearAscent, "", "", kLinear)}};
}

// A number of a row's runs less another of the same runs.
std::vector<double> changes(const Results& results, const std::string& row, const std::string& number,
                            const std::string& from) {
  return less(results.of(row, number), results.of(row, from));
}

Table later_table(const Results& results) {
  Table out{"Changed without retraining: nats per byte",
            {"row", "changed", "loss", "difference to the same weights"}};
  for (const auto& [row, number, what] :
       {std::tuple{kLact, kAscentLater, "ascent"}, std::tuple{kLact, kKeyLater, "Q := K"},
        std::tuple{kSoftmax, kKeyLater, "Q := K"}, std::tuple{kLinear, kAscentLater, "ascent"}})
    out.rows.push_back(
        {row, what, mean_text(results.of(row, number)), change_text(changes(results, row, number, "loss"))});
  return out;
}

Table steps_table(const Results& results) {
  Table out{"More inner steps at test time, on the same weights of LaCT",
            {"inner steps n", "inner loss", "its change", "loss, nats per byte", "its change",
             "steps of 1/n: change of the inner loss", "steps of 1/n: change of the loss"}};
  for (const int n : kSteps) {
    std::vector<std::string> cells{std::to_string(n)};
    for (const std::string what : {"inner loss", "loss"}) {
      cells.push_back(mean_text(results.of(kLact, with_steps(what, n))));
      cells.push_back(
          n == 1 ? "" : change_text(changes(results, kLact, with_steps(what, n), with_steps(what, 1))));
    }
    for (const std::string what : {"inner loss", "loss"})
      cells.push_back(n == 1 ? ""
                             : change_text(changes(results, kLact, shorter(what, n), with_steps(what, 1))));
    out.rows.push_back(std::move(cells));
  }
  return out;
}

Chart steps_chart(const Results& results, const std::string& what, const std::string& unit) {
  Chart chart{.title = fmt::format("Change of the {} with the number of inner steps", what),
              .x_label = "inner steps a chunk",
              .y_label = fmt::format("{} less that of one step ({})", what, unit),
              .log_x = true};
  Series whole{"whole steps", {}, {}}, parts{"steps of 1/n", {}, {}};
  for (const int n : kSteps) {
    const std::string one = with_steps(what, 1);
    add_mean(whole, n, changes(results, kLact, with_steps(what, n), one));
    add_mean(parts, n, changes(results, kLact, n == 1 ? one : shorter(what, n), one));
  }
  chart.series = {std::move(whole), std::move(parts)};
  return chart;
}

Intervals trained_picture(const Results& results) {
  Intervals out{.title = "Difference to its baseline (below 0: better)",
                .x_label = "nats per byte; the paper's: nats per token",
                .line = 0,
                .reference_name = "the paper"};
  add_difference(out, results, kLactAscent, kLact, "loss", -0.0147);
  add_difference(out, results, kLactKey, kLact, "loss", -0.0153);
  add_difference(out, results, kSoftmaxKey, kSoftmax, "loss");
  add_difference(out, results, kLinearAscent, kLinear, "loss");
  return out;
}

Table separation_table(const Results& results) {
  Table out{"Can Q be told from K?",
            {"model", "layer", "linear probe, AUC", "untrained", "MMD^2", "untrained", "largest p of a seed",
             "untrained"}};
  for (const std::string& row : {kLact, kSoftmax})
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      std::vector<std::string> cells{row, std::to_string(layer + 1)};
      for (const char* what : {"AUC", "MMD^2"})
        for (const std::string& when : {std::string(), kUntrained})
          cells.push_back(mean_text(results.of(row, of_layer(when + what, layer))));
      for (const std::string& when : {std::string(), kUntrained}) {
        const std::vector<double> p = results.of(row, of_layer(when + "MMD p", layer));
        cells.push_back(p.empty() ? "" : format_number(*std::ranges::max_element(p)));
      }
      out.rows.push_back(std::move(cells));
    }
  return out;
}

}  // namespace

std::vector<ReportView> paradoxes_views(const Results& results) {
  return {
      {.id = "trained",
       .title = "Trained otherwise",
       .question = "Does the direction of the inner step matter, and does it matter what is asked?",
       .reading =
           "Every row is trained anew, from the same start and on the same bytes as its baseline. LaCT's inner loss is an "
           "inner product, for which ascent is descent from a mirrored start (the experiment `ascent` shows it bit for "
           "bit). But the mirror includes the gain of the norm behind the learner, which starts at +1 and is not turned here, so "
           "the ascent row does not start where another seed might: its difference is no mere noise, and in full runs "
           "it is below the baseline by more than seeds differ. TTT-Linear has a squared error, which has no such symmetry; its "
           "rates are learnt, and may become small where a step does harm; where a run of it is not finite a sign test over seeds judges (a "
           "rule that was made after the kept runs). In softmax attention Q := K is another model: "
           "whose scores are symmetric, with its own token among the largest.\n\n"
           "What differs from the paper: 760M parameters on 32k tokens of books there, some 0.2M on bytes of source text "
           "here; a window of attention is beside LaCT in both, and keeps its own queries with Q := K.",
       .pictures = {trained_table(results), trained_picture(results), later_table(results)}},
      {.id = "steps",
       .title = "More inner steps",
       .question = "More steps of the inner loop at test time: a better memory, a worse answer?",
       .reading =
           "The inner loss is that of a chunk's own keys and values after its steps, a mean over layers and tokens; it has "
           "no minimum, so a lower one may be more of the same direction and no better memory. n whole steps also go n "
           "times as far as the model was trained for: steps of 1/n make as many of them over about the same distance. "
           "They are made shorter behind Muon: before it, as part of a rate, a factor would be divided out again. If they "
           "leave the loss nearly where it was, then it is the distance and not the number of steps that does the harm. "
           "The paper shows this as a picture (figure 1), without numbers.",
       .pictures = {steps_table(results), steps_chart(results, "inner loss", "mean inner product, negative"),
                    steps_chart(results, "loss", "nats per byte")}},
      {.id = "queries",
       .title = "Queries and keys",
       .question = "Do queries differ from keys because of what the model has learnt?",
       .reading =
           "The paper shows that Q and K lie apart in a picture (t-SNE, figure 2) and concludes that a memory is asked "
           "what it has never seen. Two random projections of the same input lie apart as well: so the numbers stand "
           "beside those of the untrained model, and of softmax attention, which nobody doubts to be a look-up. The probe "
           "is Fisher's direction, found on half of the windows and tried on the others (1/2: nothing tells them apart, "
           "1: everything does); MMD is that of Gretton et al. 2012, with p from 199 exchanges of q and k within tokens "
           "(the least that it can be is 0.005). Both look at the projections, before rotation or any feature map.",
       .pictures = {separation_table(results)}}};
}

}  // namespace nestgrad::reproduce
