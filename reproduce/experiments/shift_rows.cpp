#include "reproduce/experiments/shift_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reproduce/claims.h"
#include "reproduce/statistics.h"

namespace nestgrad::reproduce {

namespace {

constexpr int kSeverity = 2;
constexpr std::uint64_t kCorruptionSeed = 0x636f7272;

struct Row {
  const char* name;
  ShiftTraining training;
  TestTime how;
};
constexpr const char *kNone = "classes alone", *kJoint = "joint training", *kAll = "TTT of all",
                     *kNorms = "TTT of norms", *kLora = "TTT of LoRA", *kBlock = "TTT of the first block",
                     *kOnline = "online TTT", *kMetaStill = "meta-trained, no step",
                     *kMeta = "meta-trained, TTT of all";
std::vector<Row> rows_of(const ShiftProblem& problem) {
  return {{kNone, ShiftTraining::classes, {}},
          {kJoint, ShiftTraining::joint, {}},
          {kAll, ShiftTraining::joint, {.what = Learning::all}},
          {kNorms, ShiftTraining::joint, {.what = Learning::norms}},
          {kLora, ShiftTraining::joint, {.what = Learning::lora}},
          {kBlock, ShiftTraining::joint, {.what = Learning::block}},
          {kOnline, ShiftTraining::joint, {.what = problem.learning, .steps = 1, .keep = true}},
          {kMetaStill, ShiftTraining::meta, {}},
          {kMeta, ShiftTraining::meta, {.what = Learning::all}}};
}

// The row that claims on steps at test time are of.
const char* claimed(const ShiftProblem& problem) {
  return problem.learning == Learning::block ? kBlock : kAll;
}

std::string loss_of(const std::string& corruption) { return "loss, " + corruption; }
std::string right_of(const std::string& corruption) { return "right, " + corruption; }
constexpr const char *kClean = "clean", *kMean = "corrupted";

std::vector<std::string> corruption_names() {
  std::vector<std::string> out;
  for (const CorruptionRow& row : corruptions()) out.emplace_back(row.title);
  return out;
}

// The same images in every row and for every seed.
LabelledImages images_of(const ShiftProblem& problem, const Settings& settings,
                         const CorruptionRow* corruption) {
  const std::int64_t count = settings.full() ? 250 : 50;
  LabelledImages out = problem.held_out(settings, 0, count);
  if (corruption) out.images = corrupted(out.images, corruption->corruption, kSeverity, kCorruptionSeed);
  return out;
}

std::int64_t steps_of(const Settings& s) { return s.full() ? 1500 : 350; }

// Rows with the same training begin with the same weights.
std::shared_ptr<const StateDict> trained(const ShiftProblem& problem, ShiftTraining kind, const Task& task) {
  static SharedStarts starts;
  const std::string key = fmt::format("{} {} {} {}", static_cast<int>(problem.self), static_cast<int>(kind),
                                      steps_of(task.settings), task.settings.data);
  return starts.get(key, task.seed, task.settings.all_seeds(), [&](std::uint64_t seed) {
    Task own = task;
    own.seed = seed;
    return train_for_shift(problem, kind, steps_of(task.settings), own, 0.6);
  });
}

Measured run(const ShiftProblem& problem, const Task& task) {
  Measured out;
  const std::vector<Row> rows = rows_of(problem);
  const Row& row = *std::ranges::find_if(rows, [&](const Row& r) { return r.name == task.row; });
  const std::shared_ptr<const StateDict> params = trained(problem, row.training, task);
  const auto add = [&](const std::string& name, const CorruptionRow* corruption) {
    const std::vector<Answer> answers =
        answers_of(problem, *params, row.how, images_of(problem, task.settings, corruption), 0);
    double loss = 0, right = 0;
    for (const Answer& a : answers) loss += a.loss, right += a.right;
    out.numbers[loss_of(name)] = loss / static_cast<double>(answers.size());
    out.numbers[right_of(name)] = 100 * right / static_cast<double>(answers.size());
  };
  add(kClean, nullptr);
  double loss = 0, right = 0;
  const auto n = static_cast<double>(corruptions().size());
  for (const CorruptionRow& c : corruptions()) {
    const std::string name(c.title);
    add(name, &c);
    loss += out.numbers[loss_of(name)] / n, right += out.numbers[right_of(name)] / n;
    if (task.row == kJoint)
      out.numbers["cosine, " + name] =
          cosine_of_gradients(problem, *params, images_of(problem, task.settings, &c));
  }
  out.numbers[loss_of(kMean)] = loss, out.numbers[right_of(kMean)] = right;
  return out;
}

// What TTT (row `learnt`) gains in each corruption, and the cosine of the two gradients there.
std::pair<std::vector<double>, std::vector<double>> gains_and_cosines(const Results& results,
                                                                      const char* learnt,
                                                                      std::uint64_t seed) {
  std::vector<double> gains, cosines;
  for (const std::string& name : corruption_names()) {
    gains.push_back(results.number(kJoint, seed, loss_of(name)) -
                    results.number(learnt, seed, loss_of(name)));
    cosines.push_back(results.number(kJoint, seed, "cosine, " + name));
  }
  return {gains, cosines};
}

std::vector<DeclaredClaim> claims(const ShiftProblem& problem) {
  const char* learnt = claimed(problem);
  const std::string loss = loss_of(kMean);
  return {
      below(learnt, kJoint, loss,
            "under corruptions, steps at test time lower the loss of a jointly trained model"),
      below(kOnline, learnt, loss, "online, where what was learnt is kept, they lower it more"),
      below(kMeta, kMetaStill, loss,
            "a model that was trained through such a step gains by steps at test time"),
      below(kMeta, learnt, loss,
            "after as many steps at test time it is better than the jointly trained one"),
      negative(
          "on clean images steps at test time cost less than a point of accuracy", "%",
          [=](const Results& results, std::uint64_t seed) {
            return results.number(kJoint, seed, right_of(kClean)) -
                   results.number(learnt, seed, right_of(kClean));
          },
          -1),
      negative(
          "over corruptions, the gain goes with the cosine of the two tasks' gradients (Spearman, negative)",
          "", [=](const Results& results, std::uint64_t seed) {
            const auto [gains, cosines] = gains_and_cosines(results, learnt, seed);
            for (const double x : gains)
              if (std::isnan(x)) return kUnknown;
            return -spearman(gains, cosines);
          })};
}

std::vector<ReportView> pages(const ShiftProblem& problem, const ShiftTexts& texts, const Results& results) {
  std::vector<std::string> columns{"method", "clean"}, names{kClean};
  for (const std::string& name : corruption_names()) columns.push_back(name), names.push_back(name);
  columns.emplace_back("mean of corruptions"), columns.emplace_back("to joint training");
  names.emplace_back(kMean);
  Table right{"Right (%)", columns}, loss{"Cross-entropy (nats)", columns};
  Intervals picture{.title = "Cross-entropy under corruptions, to joint training", .x_label = "nats"};
  picture.line = 0;
  for (const Row& row : rows_of(problem)) {
    std::vector<std::string> of_right{row.name}, of_loss{row.name};
    for (const std::string& name : names) {
      of_right.push_back(mean_text(results.of(row.name, right_of(name)), 1));
      of_loss.push_back(mean_text(results.of(row.name, loss_of(name)), 2));
    }
    const bool base = row.name == std::string(kJoint);
    of_right.push_back(base ? "" : difference_text(results, row.name, kJoint, right_of(kMean), 1));
    of_loss.push_back(base ? "" : difference_text(results, row.name, kJoint, loss_of(kMean)));
    right.rows.push_back(std::move(of_right)), loss.rows.push_back(std::move(of_loss));
    if (!base) add_difference(picture, results, row.name, kJoint, loss_of(kMean));
  }
  Points points{"What TTT gains and how the gradients lie", "cosine of the two gradients", "gain (nats)"};
  const char* learnt = claimed(problem);
  for (const std::uint64_t seed : results.seeds()) {
    if (!results.finished(kJoint, seed) || !results.finished(learnt, seed)) continue;
    const auto [gains, cosines] = gains_and_cosines(results, learnt, seed);
    points.groups.push_back({fmt::format("seed {}", seed), cosines, gains});
  }
  Images images{.title = "The first images, and what becomes of them"};
  Settings drawn = results.settings();
  drawn.data.clear();  // a page needs no folder
  constexpr std::int64_t shown = 8;
  images.columns = static_cast<int>(shown);
  const LabelledImages clean = problem.held_out(drawn, 0, shown);
  const auto add = [&](const std::string& name, const Array& all) {
    images.row_names.push_back(name);
    for (std::int64_t i = 0; i < shown; ++i) images.tiles.push_back({image_of(all, i)});
  };
  add(kClean, clean.images);
  for (const CorruptionRow& c : corruptions())
    add(std::string(c.title), corrupted(clean.images, c.corruption, kSeverity, kCorruptionSeed));
  return {
      {.id = "methods",
       .title = "Learning from the image that is to be classified",
       .question = texts.question,
       .reading =
           texts.task +
           " What learns is all that this task reads, gains and shifts of norms, LoRA of rank 4 in all "
           "matrices of blocks, or the first block. "
           "Meta-training adds, to the same joint loss and for as many steps, the classification error of six "
           "images after one such step, with the gradient through the step: the outer gradient of an inner "
           "one.\n\n"
           "Images, copies and what is asked of them are the same for all rows and seeds; severity 2 of 5. "
           "Which image comes first changes no bit where everything is forgotten.",
       .pictures = {right, loss, picture}},
      {.id = "gradients",
       .title = "When it helps",
       .question = "Does it help where both tasks want the same?",
       .reading =
           "Sun et al. 2020 show for convex models that a step on one loss lowers the other where their gradients "
           "have a positive product. Each point is a corruption.",
       .pictures = points.groups.empty() ? std::vector<Picture>{} : std::vector<Picture>{points}},
      {.id = "corruptions",
       .title = "The corruptions",
       .question = "What does the model see?",
       .reading = texts.data,
       .pictures = {images}}};
}

}  // namespace

Experiment shift_experiment(Experiment made, const ShiftProblem& problem, const ShiftTexts& texts) {
  made.rows = [problem](const Settings&) { return names_of(rows_of(problem)); };
  made.run = [problem](const Task& task) { return run(problem, task); };
  made.claims = claims(problem);
  made.views = [problem, texts](const Results& results) { return pages(problem, texts, results); };
  return made;
}

}  // namespace nestgrad::reproduce
