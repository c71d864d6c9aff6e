// New views of a scene by fast weights: the column of views of the tables of 'Test-time training with KV binding is secretly
// linear attention' (2026), Table 2 and section 4, on small scenes of spheres and boxes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/images/scenes.h"
#include "reproduce/claims.h"
#include "reproduce/experiments/catalogue.h"
#include "reproduce/experiments/view_scenes.h"
#include "reproduce/image_runs.h"
#include "reproduce/language_runs.h"

namespace nestgrad::reproduce {

namespace {

// learner: models/vision/view_synthesis.h. paper: PSNR (dB) of LaCT-NVS; NaN: none.
struct Row {
  const char *name, *learner;
  double paper;
  bool full = false;  // only there
};
constexpr const char *kOff = "update off", *kLact = "LaCT", *kShared = "Q := K",
                     *kV1 = "V1 only the last layer learns", *kV2 = "V2 no weight norm",
                     *kV3 = "V3 a single layer";
constexpr Row kRows[] = {{kOff, "off", kUnknown},
                         {kLact, "baseline", 25.94},
                         {kV1, "v1", 25.97, true},
                         {kV2, "v2", 25.93},
                         {kV3, "v3", 25.71},
                         {"V4 one rate for all tokens", "v4", 25.70, true},
                         {"V6 no Muon: linear attention", "v6", 25.73, true},
                         {"ascent", "ascent", 25.85, true},
                         {kShared, "shared-qk", 25.95}};
constexpr double kMargin = 0.3;  // dB
constexpr double kRate = 4e-3;   // the best of .001, .002 and .004 for LaCT, with another seed, 1000
constexpr int kSteps[] = {1, 2, 4, 8};

constexpr const char *kPsnr = "PSNR", *kInside = "PSNR inside objects";

Measured run(const Task& task) {
  Measured out;
  const auto row =
      std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& r) { return r.name == task.row; });
  vision::ViewSynthesisConfig config = view_model(row->learner);
  Training training({.seed = task.seed, .adamw = {.weight_decay = 0.05}});
  training.add(scene_specs(kSceneBatch), [&](ParamTable& table, const std::vector<Tensor>& in) {
    return Training::Objective{mean(squared_errors(in, Params(table), config))};
  });
  const std::int64_t steps = task.settings.full() ? 6000 : 1500;
  std::vector<double> losses;
  for (std::int64_t i = 0; i < steps; ++i) {
    losses.push_back(
        training
            .step(0, scene_batch(training_scenes(), i, task.seed), cosine_rate(i, steps, steps / 10, kRate))
            .loss);
    if (task.progress) task.progress(0.95 * static_cast<double>(i) / static_cast<double>(steps));
  }
  out.curves["training loss"] = binned(losses, 32);
  const StateDict params = training.parameters();
  keep_model(task, config, params);
  const std::int64_t scenes = task.settings.full() ? 256 : 96;
  const ViewQuality quality = quality_of(config, params, scenes);
  out.numbers[kPsnr] = quality.psnr, out.numbers[kInside] = quality.inside;
  if (task.row == kLact) {
    for (const bool divided : {false, true}) {
      std::vector<double>& curve = out.curves[divided ? "PSNR by steps, rates by steps" : "PSNR by steps"];
      for (const int n : kSteps) {
        vision::ViewSynthesisConfig more = config;
        more.learner.steps = n;
        if (divided) more.learner.step_scale = 1.0 / n;
        curve.push_back(n == 1 ? quality.psnr : quality_of(more, params, scenes).psnr);
      }
    }
    out.numbers["PSNR of the nearest view"] = quality_of_nearest_view(scenes).psnr;
    out.numbers["PSNR of the mean view"] = quality_of_mean_view(scenes).psnr;
  }
  if (task.seed == task.settings.first_seed && (task.row == kLact || task.row == kOff))
    out.curves["pixels"] = shown_pixels(config, params);
  return out;
}

std::vector<DeclaredClaim> claims() {
  const auto later = [](DeclaredClaim claim) {
    claim.full_only = true;
    return claim;
  };
  const auto steps = [](const Results& results, std::uint64_t seed) {
    const Measured* m = results.finished(kLact, seed);
    if (!m) return kUnknown;
    const std::vector<double>& psnr = m->curve("PSNR by steps", std::size(kSteps));
    return largest_of({psnr.begin() + 1, psnr.end()}) - psnr.front();
  };
  const auto above = [](const char* number, const char* text) {
    return negative(text, "dB", [=](const Results& results, std::uint64_t seed) {
      return results.number(kLact, seed, number) - results.number(kLact, seed, kPsnr);
    });
  };
  return {
      below(kOff, kLact, kPsnr,
            "only fast weights know of other views: without their update PSNR is lower, by more than 1 dB",
            1),
      later(below(kOff, kLact, kPsnr, "and, trained as long as here, by more than 3 dB", 3)),
      above("PSNR of the nearest view", "LaCT's views are better than the nearest one that it was given"),
      above("PSNR of the mean view", "LaCT's views are better than the mean of those that it was given"),
      below(kV3, kV2, kPsnr,
            "V3: a single layer in the place of the SwiGLU costs something (the paper: -.22 dB)"),
      within(kShared, kLact, kPsnr, kMargin, "Q := K changes PSNR by less than .3 dB"),
      negative("more inner steps at test time, from 2 to 8, all lower PSNR", "dB", steps),
      later(within(kV1, kLact, kPsnr, kMargin,
                   "V1: that only the last layer learns changes PSNR by less than .3 dB")),
      later(within("ascent", kLact, kPsnr, kMargin, "ascent changes PSNR by less than .3 dB"))};
}

std::vector<std::string> rows(const Settings& settings) {
  std::vector<std::string> out;
  for (const Row& row : kRows)
    if (settings.full() || !row.full) out.emplace_back(row.name);
  return out;
}

ReportView ladder(const Results& results) {
  Table table{"Views (the paper's Table 2 and section 4, LaCT-NVS)",
              {"row", "paper, PSNR (dB)", "to LaCT", "ours, PSNR (dB)", "to LaCT", "inside objects"}};
  Intervals picture{.title = "PSNR, to LaCT", .x_label = "dB"};
  picture.line = 0;
  for (const Row& row : kRows) {
    if (row.full && !results.settings().full()) continue;
    const bool paper = !std::isnan(row.paper), base = row.name == std::string(kLact);
    table.rows.push_back({row.name, paper ? fmt::format("{:.2f}", row.paper) : "",
                          paper && !base ? fmt::format("{:+.2f}", row.paper - 25.94) : "",
                          mean_text(results.of(row.name, kPsnr), 2),
                          base ? "" : difference_text(results, row.name, kLact, kPsnr, 2),
                          mean_text(results.of(row.name, kInside), 2)});
    if (!base && row.name != std::string(kOff))
      add_difference(picture, results, row.name, kLact, kPsnr, paper ? row.paper - 25.94 : kUnknown);
  }
  picture.reference_name = "the paper";
  for (const char* number : {"PSNR of the nearest view", "PSNR of the mean view"})
    table.rows.push_back(
        {std::string(number).substr(8), "", "", mean_text(results.of(kLact, number), 2), "", ""});
  Chart steps{"PSNR with more inner steps at test time", "inner steps", "PSNR (dB)"};
  const std::vector<double> x(std::begin(kSteps), std::end(kSteps));
  for (const char* curve : {"PSNR by steps", "PSNR by steps, rates by steps"})
    if (Series line =
            mean_line(curve == std::string("PSNR by steps") ? "steps as trained" : "each step 1/n as far", x,
                      results.curves(kLact, curve));
        !line.x.empty())
      steps.series.push_back(std::move(line));
  return {
      .id = "ladder",
      .title = "LaCT for views, a part less at a time",
      .question =
          "What are the parts of the learner worth where it alone carries anything from view to view?",
      .reading =
          "Three to five lit spheres and boxes lie on a checkered floor; four cameras see them, and two other views are "
          "asked for by their rays alone: 32 x 32 pixels, patches of 8, width 64, two blocks of attention within a "
          "view, fast weights and an MLP. Only the fast weights carry anything from one view to another, so the first "
          "row is an exact control: with the update off no asked view depends on a given one. PSNR is of each view, "
          "then the mean over held-out scenes, the same for all rows; inside objects it is of the pixels that show one, as "
          "plain ground is easy.\n\n"
          "The paper's figures are of RealEstate10K at 128 x 128 with 114M parameters. Signs and order compare, levels do "
          "not. It changes one thing at a time, cumulatively from V1 to V6.\n\n"
          "That views are worse by more than 1 dB without the update was first claimed of 3 dB, before runs were made longer; the "
          "3 dB are now a claim of full runs alone.",
      .pictures = {table, picture, steps}};
}

}  // namespace

Experiment view_synthesis() {
  return {
      .name = "views",
      .title = "New views by fast weights",
      .shows =
          "LaCT with a part less at a time makes views of small scenes that it did not see, and an exact control with "
          "its update off",
      .source =
          "Test-time training with KV binding is secretly linear attention, Table 2 (views) and section 4",
      .quick_minutes = 8,
      .full_minutes = 30,
      .full_seeds = 3,
      .data = Data::drawn,
      .keeps_models = true,
      .rows = rows,
      .run = run,
      .claims = claims(),
      .views = [](const Results& results) {
        return std::vector<ReportView>{ladder(results), pictures_of_views(results, kLact, kOff)};
      }};
}

}  // namespace nestgrad::reproduce
