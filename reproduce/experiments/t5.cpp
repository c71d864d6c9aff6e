// Softmax vision transformers that become test-time-trained ones: what a conversion keeps, and what makes it easy. After
// 'Linearizing vision transformers with test-time training' (T^5, 2026).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reproduce/claims.h"
#include "reproduce/experiments/catalogue.h"
#include "reproduce/experiments/t5_shift.h"
#include "reproduce/image_runs.h"

namespace nestgrad::reproduce {

namespace {

constexpr const char *kSoftmax = "softmax attention", *kFurther = "softmax attention, trained on",
                     *kExact = "keys shifted";
constexpr double kRate =
    4e-3;  // the largest one, of training from the start: as in the experiment on classes
// Of inherited parameters in a conversion: the best of .0001, .0002 and .0005 for SwiGLU, frozen and tuned, with another seed,
// 1000; the paper's is a fiftieth of its first one.
constexpr double kConversion = 5e-4;
constexpr double kNew = 20;  // times it: of new ones, as in the paper

// A conversion of the softmax model. paper: top-1 of its tables, NaN: none.
struct Conversion {
  std::string row, mixer;
  bool frozen = false;                 // inherited parameters stay
  double multiplier = kNew, rate = 1;  // of new parameters' rate over inherited ones'; of all rates
  double paper = kUnknown;
  bool full = false;  // only there
};

std::string row_of(const std::string& name, bool frozen) { return name + (frozen ? ", frozen" : ", tuned"); }

struct Model {
  const char *name, *mixer;
  double frozen, tuned;  // the paper's top-1
};
constexpr Model kModels[] = {{"linear attention", "linear", 3.71, 63.30},
                             {"linear, projected QK", "linear-proj-qk", 24.39, 66.23},
                             {"TTT, one gated layer", "t5-gated", 61.95, 67.59},
                             {"TTT, two layers", "t5-two-layers", 65.98, 68.14},
                             {"TTT, three layers", "t5-three-layers", 67.09, 68.93},
                             {"TTT, SwiGLU", "t5-swiglu", 67.33, 69.25}};
struct Variant {
  const char *name, *mixer;
  double paper;
};
constexpr Variant kNorms[] = {{"no norm of keys", "t5-norm-none", .37},
                              {"RMS norm", "t5-norm-rms", 57.38},
                              {"layer norm", "t5-norm-layer", 57.25},
                              {"instance norm", "t5-dwc-qk", 71.19},
                              {"instance norm, no division", "t5-no-std", 71.15},
                              {"instance norm, no subtraction", "t5-no-mean", 51.43}};
constexpr Variant kLocality[] = {{"none", "t5-swiglu", 69.25},
                                 {"position convolution", "t5-cpe", 69.64},
                                 {"convolved v", "t5-dwc-v", 70.47},
                                 {"convolved q and k", "t5-dwc-qk", 71.19},
                                 {"neighbourhood of 3", "t5-nat3", 71.67},
                                 {"neighbourhood of 5", "t5-nat5", 72.06}};
constexpr std::pair<double, double> kMultipliers[] = {{1, 68.14},  {10, 70.71}, {20, 71.19}, {30, 71.29},
                                                      {40, 71.36}, {50, 71.31}, {100, 71.35}};
constexpr double kRates[] = {1, 4, 16};  // times all rates: where training breaks

std::string multiplied(double times) { return fmt::format("new parameters {} times as fast", times); }
std::string at_rate(const char* norm, double times) { return fmt::format("{}, rates times {}", norm, times); }

const std::vector<Conversion>& conversions() {
  static const std::vector<Conversion> all = [] {
    std::vector<Conversion> out;
    for (const bool frozen : {true, false})
      for (const Model& m : kModels)
        out.push_back({row_of(m.name, frozen), m.mixer, frozen, kNew, 1, frozen ? m.frozen : m.tuned});
    out.push_back({multiplied(20), "t5-dwc-qk", false, 20, 1, 71.19});
    out.push_back({multiplied(1), "t5-dwc-qk", false, 1, 1, 68.14});
    for (const auto& [times, paper] : kMultipliers)
      if (times != 1 && times != 20)
        out.push_back({multiplied(times), "t5-dwc-qk", false, times, 1, paper, true});
    for (const Variant& v : kLocality)
      if (std::string(v.mixer) != "t5-dwc-qk" && std::string(v.mixer) != "t5-swiglu")
        out.push_back({v.name, v.mixer, false, kNew, 1, v.paper, true});
    for (const Variant& v : kNorms)
      if (std::string(v.mixer) != "t5-dwc-qk")
        out.push_back({v.name, v.mixer, false, kNew, 1, v.paper, true});
    for (const double times : kRates)
      if (times != 1)
        for (const char* norm : {"instance norm", "instance norm, no subtraction"})
          out.push_back({at_rate(norm, times),
                         std::string(norm) == "instance norm" ? "t5-dwc-qk" : "t5-no-mean", false, kNew,
                         times, kUnknown, true});
    return out;
  }();
  return all;
}
// The row that has a variant: those that the main table has stand there.
std::string row_of(const Variant& v) {
  const std::string mixer = v.mixer;
  return mixer == "t5-dwc-qk" ? multiplied(20) : mixer == "t5-swiglu" ? row_of("TTT, SwiGLU", false) : v.name;
}

std::int64_t first_images(const Settings& s) { return s.full() ? 320000 : 96000; }
std::int64_t more_images(const Settings& s) { return s.full() ? 32000 : 9600; }

// The softmax model that all conversions of a seed begin with. Which run makes it is chance, so no result has a trace of that.
std::shared_ptr<const StateDict> softmax_model(const Task& task) {
  static SharedStarts starts;
  const std::string key = fmt::format("{} {}", first_images(task.settings), task.settings.data);
  return starts.get(key, task.seed, task.settings.all_seeds(), [&](std::uint64_t seed) {
    Task own = task;
    own.seed = seed;
    Measured unused;
    return train({.model = classifier("softmax"), .images = first_images(task.settings), .lr = kRate}, own,
                 unused, 0.8);
  });
}

void convert(const Conversion& c, const StateDict& start, const Task& task, Measured& out) {
  ImageRun run{.model = classifier(c.mixer),
               .images = more_images(task.settings),
               .lr = kConversion * c.rate,
               .start = &start};
  const std::vector<std::string> inherited = vision::inherited_parameters(run.model);
  for (const std::string& name : inherited)
    run.groups.push_back({.names = name, .rate = c.frozen ? 0.0 : 1.0});
  run.groups.push_back({.names = "*", .rate = c.multiplier});
  const bool nothing_new = c.mixer == "linear";
  if (nothing_new) run.groups.pop_back();
  const StateDict params = c.frozen && nothing_new ? start : train(run, task, out);
  keep_model(task, run.model, params);
  measure(run.model, params, task, out);
  if (c.mixer == "t5-dwc-qk" || c.mixer == "t5-swiglu")
    out.numbers["key shift"] = key_shift(run.model, params, task);
  if (c.mixer == "t5-swiglu" && !c.frozen) out.curves["attention"] = attention_of(run.model, params, task);
}

Measured run(const Task& task) {
  Measured out;
  if (task.row == kExact) {
    shift_keys(task, out);
  } else {
    const std::shared_ptr<const StateDict> start = softmax_model(task);
    if (task.row == kSoftmax) {
      keep_model(task, classifier("softmax"), *start);
      measure(classifier("softmax"), *start, task, out);
      out.curves["attention"] = attention_of(classifier("softmax"), *start, task);
    } else if (task.row == kFurther) {
      const ImageRun run{.model = classifier("softmax"),
                         .images = more_images(task.settings),
                         .lr = kConversion,
                         .start = start.get()};
      const StateDict params = train(run, task, out);
      keep_model(task, run.model, params);
      measure(run.model, params, task, out);
    } else {
      convert(*std::ranges::find(conversions(), task.row, &Conversion::row), *start, task, out);
    }
  }
  return out;
}

std::vector<std::string> rows(const Settings& settings) {
  std::vector<std::string> out{kSoftmax, kFurther, kExact};
  for (const Conversion& c : conversions())
    if (settings.full() || !c.full) out.push_back(c.row);
  return out;
}

std::vector<double> losses_of(const Results& results, const std::vector<std::string>& names,
                              std::uint64_t seed) {
  std::vector<double> out;
  for (const std::string& name : names) out.push_back(results.number(name, seed, "loss"));
  return out;
}

// The worst of these rows is better than `than`.
DeclaredClaim all_below(std::vector<std::string> names, std::string than, std::string text) {
  return negative(std::move(text), "", [=](const Results& results, std::uint64_t seed) {
    return largest_of(losses_of(results, names, seed)) - results.number(than, seed, "loss");
  });
}
// `name` is better than all of these rows.
DeclaredClaim below_all(std::string name, std::vector<std::string> others, std::string text) {
  return negative(std::move(text), "", [=](const Results& results, std::uint64_t seed) {
    return results.number(name, seed, "loss") - least_of(losses_of(results, others, seed));
  });
}
// Runs of a seed, over all rates, that failed or are below 20 % right; NaN where one is still to be made.
double broken_runs(const Results& results, std::uint64_t seed, bool subtracted) {
  double out = 0;
  for (const double times : kRates) {
    const char* norm = subtracted ? "instance norm" : "instance norm, no subtraction";
    const Measured* m = results.find(times != 1   ? at_rate(norm, times)
                                     : subtracted ? multiplied(20)
                                                  : norm,
                                     seed);
    out += !m ? kUnknown : m->failed() || m->numbers.at("top-1") < 20 ? 1 : 0;
  }
  return out;
}

std::vector<DeclaredClaim> claims() {
  std::vector<std::string> frozen_ttt, tuned_others;
  for (const Model& m : kModels) {
    if (std::string(m.mixer).starts_with("t5")) frozen_ttt.push_back(row_of(m.name, true));
    if (std::string(m.mixer) != "linear") tuned_others.push_back(row_of(m.name, false));
  }
  const std::string linear = row_of("linear attention", true),
                    projected = row_of("linear, projected QK", true);
  std::vector<DeclaredClaim> out{
      exact(
          "a shift of all keys changes softmax attention by less than 1e-14, TTT with instance norm by less than 1e-12, "
          "and TTT without a norm by more than 1e-3 (f64, relative)",
          shifts_hold(kExact)),
      below(projected, linear, "loss",
            "frozen: linear attention with projections of its own is better than without"),
      all_below(frozen_ttt, projected,
                "frozen: every TTT layer is better than linear attention with projections"),
      below_all(kSoftmax, frozen_ttt, "frozen: softmax attention is better than every TTT layer"),
      all_below(tuned_others, row_of("linear attention", false), "tuned: linear attention is the worst"),
      below_all(kFurther, {row_of("TTT, SwiGLU", false)},
                "tuned: softmax attention, trained on as long, is better than SwiGLU"),
      below(multiplied(20), row_of("TTT, SwiGLU", false), "loss",
            "convolutions of queries and keys help (the paper: +1.94)"),
      below(multiplied(20), multiplied(1), "loss",
            "new parameters that learn 20 times as fast help (the paper: +3.05)"),
      negative(
          "the keys of a trained T^5 have more in common than those of a softmax model at its start (the shift's share)",
          "", [](const Results& results, std::uint64_t seed) {
            return results.number(kExact, seed, "key shift at the start") -
                   results.number(multiplied(20), seed, "key shift");
          })};
  DeclaredClaim diverged = mostly_negative(
      "without subtraction of the mean more runs break when rates rise than with instance norm",
      [](const Results& results, std::uint64_t seed) {
        return broken_runs(results, seed, true) - broken_runs(results, seed, false);
      },
      [](const Results& results) {
        double with = 0, without = 0;
        for (const std::uint64_t seed : results.seeds()) {
          with += broken_runs(results, seed, true), without += broken_runs(results, seed, false);
        }
        return std::isnan(with + without)
                   ? std::string("runs are missing")
                   : fmt::format("{:.0f} with, {:.0f} without (failed, or below 20 % right)", with, without);
      });
  diverged.full_only = true;
  out.push_back(std::move(diverged));
  return out;
}

Table table_of(const Results& results, std::string title,
               const std::vector<std::pair<std::string, std::string>>& rows, const std::vector<double>& paper,
               const std::string& reference) {
  Table out{std::move(title),
            {"row", "paper, top-1 (%)", "ours, top-1 (%)", "ours, loss (nats)", "loss, to " + reference}};
  for (std::size_t i = 0; i < rows.size(); ++i)
    out.rows.push_back(
        {rows[i].first, std::isnan(paper[i]) ? "" : fmt::format("{:.2f}", paper[i]),
         mean_text(results.of(rows[i].second, "top-1"), 1), mean_text(results.of(rows[i].second, "loss")),
         rows[i].second == reference ? "" : difference_text(results, rows[i].second, reference, "loss")});
  return out;
}

ReportView conversions_view(const Results& results) {
  std::vector<std::pair<std::string, std::string>> rows{{kSoftmax, kSoftmax}, {kFurther, kFurther}};
  std::vector<double> paper{72.05, kUnknown};
  Intervals picture{.title = "Loss, to softmax attention trained on", .x_label = "nats"};
  picture.line = 0;
  for (const Conversion& c : conversions()) {
    if (c.full || c.row == multiplied(1)) continue;
    rows.emplace_back(c.row == multiplied(20) ? "TTT, SwiGLU, convolved q and k, tuned" : c.row, c.row);
    paper.push_back(c.paper);
    add_difference(picture, results, c.row, kFurther, "loss");
  }
  return {
      .id = "conversions",
      .title = "A softmax model becomes another",
      .question =
          "What is left of a trained model when its attention is replaced, and how much comes back in a tenth of "
          "the training?",
      .reading =
          "A vision transformer with softmax attention is trained from the start. Then attention is replaced in every "
          "block, all that has the same name and shape is inherited, and a tenth as many images are trained on: "
          "with what was inherited frozen, or all of it tuned, new parameters 20 times as fast. Softmax attention gets "
          "the same further training, which the paper does not give it.\n\n"
          "Paper: DeiT-T on ImageNet, 300 epochs, then 30 (tables 1 and 2). Ours: characters of ten classes on 40 x 40 "
          "pixels with pieces of others beside them, 64 tokens, width 48, two blocks. Levels do not compare; signs and "
          "order do. Linear attention has nothing new, so frozen it is not trained at all.\n\n"
          "That softmax attention is better than every frozen TTT layer was first claimed of the gated one alone; that more runs "
          "break without subtraction is judged by a sign test since the kept runs were made.",
      .pictures = {table_of(results, "Conversions (the paper's tables 1 and 2)", rows, paper, kFurther),
                   picture}};
}

ReportView parts_view(const Results& results) {
  std::vector<Picture> pictures;
  const auto add = [&](const char* title, const std::vector<std::pair<std::string, std::string>>& rows,
                       const std::vector<double>& paper, const std::string& reference) {
    pictures.push_back(table_of(results, title, rows, paper, reference));
  };
  std::vector<std::pair<std::string, std::string>> rows;
  std::vector<double> paper;
  for (const auto& [times, top] : kMultipliers) {
    if (!results.settings().full() && times != 1 && times != 20) continue;
    rows.emplace_back(multiplied(times), multiplied(times)), paper.push_back(top);
  }
  add("Rate of new parameters (table 8)", rows, paper, multiplied(20));
  for (const auto& [title, variants] :
       {std::pair<const char*, std::span<const Variant>>{"Norm of the keys (table 3)", kNorms},
        std::pair<const char*, std::span<const Variant>>{"Locality (table 4)", kLocality}}) {
    if (!results.settings().full()) break;
    rows.clear(), paper.clear();
    for (const Variant& v : variants) rows.emplace_back(v.name, row_of(v)), paper.push_back(v.paper);
    add(title, rows, paper, multiplied(20));
  }
  return {
      .id = "parts",
      .title = "What the conversion is made of",
      .question = "Which norm, which locality and which rates?",
      .reading =
          "All of SwiGLU with all parameters tuned. Norms, locality beside convolutions of queries and keys, and "
          "further rates are only in a full run.",
      .pictures = std::move(pictures)};
}

}  // namespace

Experiment t5() {
  return {
      .name = "t5",
      .title = "From softmax attention to test-time training",
      .shows =
          "what a vision transformer keeps when its attention becomes a learner that inherits its weights, and that "
          "softmax does not see a shift of all keys, which TTT does unless it is taken away",
      .source =
          "Linearizing vision transformers with test-time training (T^5), tables 1 to 5 and 8, equation 8",
      .quick_minutes = 8,
      .full_minutes = 55,
      .full_seeds = 5,  // with three, a difference that all runs agree on is not yet one
      .data = Data::digits,
      .keeps_models = true,
      .rows = rows,
      .run = run,
      .claims = claims(),
      .views = [](const Results& results) {
        return std::vector<ReportView>{
            conversions_view(results),
            shifts_view(results, kExact, {kSoftmax, row_of("TTT, SwiGLU", false)}, multiplied(20)),
            parts_view(results)};
      }};
}

}  // namespace nestgrad::reproduce
