// What a longer context is worth to different layers at equal work ('Learning to (learn at test time)', section 3), and
// learning at test time that was trained for beside learning that was not.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/core/error.h"
#include "engine/core/random.h"
#include "models/adaptation.h"
#include "reproduce/claims.h"
#include "reproduce/experiments/catalogue.h"
#include "reproduce/experiments/context_work.h"
#include "reproduce/language_runs.h"
#include "reproduce/text_reach.h"

namespace nestgrad::reproduce {

namespace {

constexpr std::size_t kPlaces = 32;  // equal parts of the longest windows
const std::string kText = "the text: a cache model";
const std::string kByPlace = "loss by place", kFineTuned = "fine-tuned while it reads";

std::vector<std::int64_t> lengths_of(const Settings& s) {
  return s.full() ? std::vector<std::int64_t>{256, 1024, 4096} : std::vector<std::int64_t>{256, 1024};
}
std::string row_of(const ContextModel& model, std::int64_t length) {
  return fmt::format("{}, T = {}", model.name, length);
}

// ---- what a run measures ----

// The same bytes at every length: windows of the longest one, and parts of them. Part i of `parts` of each window.
Array part_of(const Array& windows, std::int64_t parts, std::int64_t i) {
  const std::int64_t count = windows.shape()[0], whole = windows.shape()[1], length = (whole - 1) / parts;
  Array out(DType::i32, {count, length + 1});
  for (std::int64_t row = 0; row < count; ++row)
    std::ranges::copy(windows.as<std::int32_t>().subspan(static_cast<std::size_t>(row * whole + i * length),
                                                         static_cast<std::size_t>(length + 1)),
                      out.as<std::int32_t>().begin() + row * (length + 1));
  return out;
}

Array longest_windows(const Settings& settings) {
  const std::int64_t longest = lengths_of(settings).back();
  return corpus_of(settings).validation_windows(longest, settings.full() ? 16 : 32);
}

void measure_places(const Trainer& trainer, std::int64_t length, const Array& windows, Measured& out) {
  const std::int64_t parts = (windows.shape()[1] - 1) / length;
  std::vector<double>& places = out.curves[kByPlace];
  for (std::int64_t i = 0; i < parts; ++i) {
    const Validation v = trainer.validate(part_of(windows, parts, i));
    for (const double x : binned(v.loss_by_position, kPlaces / static_cast<std::size_t>(parts)))
      places.push_back(x);
  }
  out.numbers["loss"] =
      std::accumulate(places.begin(), places.end(), 0.0) / static_cast<double>(places.size());
}

// The weights go on learning from window to window, as `evaluate --adapt sgd` has it.
double fine_tuned_loss(const LanguageRun& run, const StateDict& params, const Array& windows) {
  AdaptingScorer scorer(run.model, params, {.what = Adapted::sgd});
  const std::int64_t parts = (windows.shape()[1] - 1) / run.context, count = windows.shape()[0];
  double sum = 0;
  for (std::int64_t row = 0; row < count; ++row)
    for (std::int64_t i = 0; i < parts; ++i) {
      const auto tokens = windows.as<std::int32_t>().subspan(
          static_cast<std::size_t>(row * windows.shape()[1] + i * run.context),
          static_cast<std::size_t>(run.context + 1));
      const std::vector<double> losses = scorer.score(tokens);
      sum += std::accumulate(losses.begin(), losses.end(), 0.0);
    }
  return sum / static_cast<double>(count * parts * run.context);
}

// Of some places of the text, drawn by the seed: what each memory makes of the same bytes.
std::vector<std::int64_t> memories_of(const Settings& s) {
  return s.full() ? std::vector<std::int64_t>{64, 256, 1024, 4096, 16384}
                  : std::vector<std::int64_t>{64, 256, 1024, 4096};
}
std::string memory_name(std::int64_t memory) { return fmt::format("loss, memory of {}", memory); }

Measured read_text(const Task& task) {
  constexpr std::size_t kTraining = std::size_t{1} << 20, kScored = 4096, kTexts = 8;
  const ByteCorpus corpus = corpus_of(task.settings);
  const std::vector<std::int64_t> memories = memories_of(task.settings);
  const std::span<const std::uint8_t> training = corpus.bytes(Split::training),
                                      text = corpus.bytes(Split::validation);
  const std::size_t length = std::min(text.size(), kScored + static_cast<std::size_t>(memories.back()));
  if (length <= kScored)
    throw ConfigError(fmt::format("[context] the validation text has {} bytes, too few", text.size()));
  const CacheModel model(training.first(std::min(training.size(), kTraining)));
  Measured out;
  for (std::size_t i = 0; i < kTexts; ++i) {
    const std::size_t from =
        random_below(static_cast<std::uint32_t>(text.size() - length + 1), task.seed, 0, i);
    for (const std::int64_t memory : memories)
      out.numbers[memory_name(memory)] +=
          model.loss(text.subspan(from, length), length - kScored, static_cast<std::size_t>(memory)) / kTexts;
    if (task.progress) task.progress(static_cast<double>(i + 1) / kTexts);
  }
  return out;
}

Measured run(const Task& task) {
  if (task.row == kText) return read_text(task);
  Measured out;
  for (const ContextModel& model : context_models())
    for (const std::int64_t length : lengths_of(task.settings)) {
      if (task.row != row_of(model, length)) continue;
      LanguageRun run;
      run.model = config_of(model, length);
      run.context = length;
      run.batch = lengths_of(task.settings).back() / length;  // as many tokens a step, whatever their windows
      run.steps = task.settings.full() ? 240 : 420;
      const std::unique_ptr<Trainer> trainer = trainer_of(run, task);
      train(*trainer, run, task, out, 0.8);
      const Array windows = longest_windows(task.settings);
      measure_places(*trainer, length, windows, out);
      if (model.layer == "attention")
        out.numbers[kFineTuned] = fine_tuned_loss(run, trainer->parameters(), windows);
    }
  return out;
}

// ---- claims ----

const Measured* finished(const Results& results, const ContextModel& model, std::int64_t length,
                         std::uint64_t seed) {
  return results.finished(row_of(model, length), seed);
}
double loss_of(const Results& results, const ContextModel& model, std::int64_t length, std::uint64_t seed) {
  return results.number(row_of(model, length), seed, "loss");
}
double quarter(const std::vector<double>& places, std::size_t which) {
  const std::size_t n = places.size() / 4;
  const auto from = places.begin() + static_cast<std::ptrdiff_t>(which * n);
  return std::accumulate(from, from + static_cast<std::ptrdiff_t>(n), 0.0) / static_cast<double>(n);
}

// The loss that the longest windows have and the shortest have not, by place: what the text is like there is taken away.
std::vector<double> gain_by_place(const Results& results, const ContextModel& model, std::uint64_t seed) {
  const std::vector<std::int64_t> lengths = lengths_of(results.settings());
  const Measured *long_one = finished(results, model, lengths.back(), seed),
                 *short_one = finished(results, model, lengths.front(), seed);
  if (!long_one || !short_one) return {};
  return less(long_one->curve(kByPlace, kPlaces), short_one->curve(kByPlace, kPlaces));
}
double slope_of(const Results& results, const ContextModel& model, std::uint64_t seed) {
  const std::vector<double> gain = gain_by_place(results, model, seed);
  return gain.empty() ? kUnknown : quarter(gain, 3) - quarter(gain, 1);
}

DeclaredClaim falls(std::string text, const std::string& a, const std::string& b) {
  return negative(std::move(text), "nats", [=](const Results& results, std::uint64_t seed) {
    const std::vector<std::int64_t> lengths = lengths_of(results.settings());
    const auto apart = [&](std::int64_t length) {
      return loss_of(results, context_model(a), length, seed) -
             loss_of(results, context_model(b), length, seed);
    };
    return apart(lengths.back()) - apart(lengths.front());
  });
}

DeclaredClaim slopes_down(const std::string& model) {
  return negative(
      fmt::format("{}: what it gains by the longest windows, on the same bytes as with the shortest, is more "
                  "in the last quarter of them than in the second",
                  model),
      "nats", [=](const Results& results, std::uint64_t seed) {
        return slope_of(results, context_model(model), seed);
      });
}

std::vector<DeclaredClaim> claims() {
  return {
      falls("TTT-Linear less Mamba-2 falls from the shortest windows to the longest", "TTT-Linear",
            "Mamba-2"),
      falls("TTT-MLP less TTT-Linear falls from the shortest windows to the longest", "TTT-MLP",
            "TTT-Linear"),
      slopes_down("softmax attention"), slopes_down("TTT-Linear"),
      negative(
          "TTT-E2E is below softmax attention that is fine-tuned while it reads, at the longest windows (which in a "
          "full run softmax attention reads with the narrowest MLP, and with 2.7 times the operations)",
          "nats", [](const Results& results, std::uint64_t seed) {
            const std::int64_t longest = lengths_of(results.settings()).back();
            const std::string softmax = row_of(context_model("softmax attention"), longest);
            return loss_of(results, context_model("TTT-E2E"), longest, seed) -
                   results.number(softmax, seed, kFineTuned);
          })};
}

// ---- the page ----

template <class Fn>
std::string by_seed(const Results& results, const Fn& fn) {
  std::vector<double> x;
  for (const std::uint64_t seed : results.seeds())
    if (const double value = fn(seed); !std::isnan(value)) x.push_back(value);
  return mean_text(x);
}

Table losses_table(const Results& results) {
  const std::vector<std::int64_t> lengths = lengths_of(results.settings());
  Table out{"Loss on the same bytes, by the length of the windows (nats per byte)", {"model"}};
  for (const std::int64_t length : lengths) out.columns.push_back(fmt::format("T = {}", length));
  out.columns.insert(out.columns.end(), {"longest less shortest", "its last less its second quarter",
                                         "the paper, at equal work (figures 10 and 11)"});
  const auto line = [&](const ContextModel& model, const std::string& number, const std::string& name,
                        const std::string& paper) {
    std::vector<std::string> cells{name};
    for (const std::int64_t length : lengths)
      cells.push_back(mean_text(results.of(row_of(model, length), number)));
    cells.push_back(by_seed(results, [&](std::uint64_t seed) {
      return results.number(row_of(model, lengths.back()), seed, number) -
             results.number(row_of(model, lengths.front()), seed, number);
    }));
    cells.push_back(number == "loss"
                        ? by_seed(results, [&](std::uint64_t seed) { return slope_of(results, model, seed); })
                        : "");
    cells.push_back(paper);
    out.rows.push_back(std::move(cells));
  };
  for (const ContextModel& model : context_models()) line(model, "loss", model.name, model.paper);
  line(context_model("softmax attention"), kFineTuned, "softmax attention, fine-tuned while it reads", "");
  return out;
}

Table work_table(const Results& results) {
  const std::vector<std::int64_t> lengths = lengths_of(results.settings());
  Table out{"Work of a token when reading, in thousands of operations; in brackets the width of the MLP",
            {"model"}};
  for (const std::int64_t length : lengths) out.columns.push_back(fmt::format("T = {}", length));
  for (const ContextModel& model : context_models()) {
    std::vector<std::string> cells{model.name};
    for (const std::int64_t length : lengths) {
      const std::int64_t hidden = config_of(model, length).intermediate_size;
      cells.push_back(fmt::format("{:.1f} ({})", work_of(model, length, hidden) / 1000, hidden));
    }
    out.rows.push_back(std::move(cells));
  }
  return out;
}

Table reach_table(const Results& results) {
  Table out{"What a memory of the text is worth to a cache model",
            {"bytes remembered", "nats per byte", "gain over the row before"}};
  const std::vector<std::int64_t> memories = memories_of(results.settings());
  for (std::size_t i = 0; i < memories.size(); ++i) {
    const std::vector<double> now = results.of(kText, memory_name(memories[i]));
    std::vector<double> gain;
    if (i > 0) gain = less(results.of(kText, memory_name(memories[i - 1])), now);
    out.rows.push_back({std::to_string(memories[i]), mean_text(now, 4), mean_text(gain, 4)});
  }
  return out;
}

// A line of each model by place in the longest windows: `fn` gives a seed's numbers, or none.
Chart by_place(const Results& results, Chart chart,
               const std::function<std::vector<double>(const ContextModel& model, std::uint64_t seed)>& fn) {
  const double width = static_cast<double>(lengths_of(results.settings()).back()) / kPlaces;
  std::vector<double> places;
  for (std::size_t i = 0; i < kPlaces; ++i) places.push_back((static_cast<double>(i) + 0.5) * width);
  for (const ContextModel& model : context_models()) {
    std::vector<std::vector<double>> curves;
    for (const std::uint64_t seed : results.seeds())
      if (std::vector<double> numbers = fn(model, seed); !numbers.empty())
        curves.push_back(std::move(numbers));
    // Without intervals: there are six lines, and the table has them.
    if (Series line = mean_line(model.name, places, curves); !line.x.empty())
      chart.series.push_back(std::move(line));
  }
  return chart;
}

Chart gain_chart(const Results& results) {
  return by_place(
      results,
      {.title = "Loss with the longest windows less that with the shortest, on the same bytes",
       .x_label = "place in the longest window (bytes)",
       .y_label = "difference (nats per byte), a mean over seeds"},
      [&](const ContextModel& model, std::uint64_t seed) { return gain_by_place(results, model, seed); });
}

Chart position_chart(const Results& results) {
  return by_place(results,
                  {.title = "Loss by position in the longest windows",
                   .x_label = "place (bytes)",
                   .y_label = "loss (nats per byte), a mean over seeds"},
                  [&](const ContextModel& model, std::uint64_t seed) {
                    const Measured* m = finished(results, model, lengths_of(results.settings()).back(), seed);
                    return m ? m->curve(kByPlace, kPlaces) : std::vector<double>{};
                  });
}

Chart length_chart(const Results& results) {
  Chart chart{.title = "Loss on the same bytes by the length of the windows",
              .x_label = "length of the windows (bytes)",
              .y_label = "loss (nats per byte)",
              .log_x = true};
  for (const ContextModel& model : context_models()) {
    Series line{model.name, {}, {}};
    for (const std::int64_t length : lengths_of(results.settings()))
      add_mean(line, static_cast<double>(length), results.of(row_of(model, length), "loss"));
    if (!line.x.empty()) chart.series.push_back(std::move(line));
  }
  return chart;
}

std::vector<ReportView> views(const Results& results) {
  return {
      {.id = "reach",
       .title = "Does the text reach so far?",
       .question = "Before any model is asked whether it uses a long context: is there anything to be used?",
       .reading =
           "A cache model (byte counts behind the last 0 to 5 bytes, of 1 MiB of the training text and, with more weight, "
           "of the last bytes of the text itself) reads the same bytes with memories of different lengths; each seed draws "
           "other places of the validation text. The gain of a row is what the bytes between two memories are worth to a "
           "reader that can only repeat what it has seen; where it is nothing, no slope of a model may be expected. A "
           "longer memory also has older counts, which can do harm: a cache model forgets nothing that it remembers.",
       .pictures = {reach_table(results)}},
      {.id = "length",
       .title = "Length and position",
       .question = "Which layers make something of a longer context?",
       .reading =
           "Every model is trained with windows of each length, on as many tokens, and reads the same validation bytes, cut "
           "into windows of that length. Windows are cut out of the longest ones, so the difference of a model's two "
           "trainings at one place is free of what the text is like there: the slope is that of the difference, last "
           "quarter less second quarter. A shorter window also gives more sequences a step, which learn faster at first; "
           "a constant difference says nothing of context, a slope does.\n\n"
           "The paper has pictures and no numbers: at 2k tokens TTT-Linear, Mamba and the transformer are level; at 8k and "
           "at 32k both TTT layers beat Mamba, whose loss stops falling after 16k; TTT-MLP is worse at short contexts and "
           "better at long ones. As there, the layers with a state have the backbone with a gate and convolutions, softmax "
           "attention (and TTT-E2E) have the transformer's. Mamba-2 stands here in the place of Mamba.\n\n"
           "Fine-tuned while it reads: the trained softmax model makes a step of gradient descent on all its weights after "
           "each window and keeps them for the next (dynamic evaluation, `evaluate --adapt sgd`); TTT-E2E has been trained "
           "for its steps, one every 64 tokens, and begins anew in every window. The intervals are over seeds of training "
           "alone: all seeds read the same validation text.",
       .pictures = {losses_table(results), length_chart(results), gain_chart(results),
                    position_chart(results)}},
      {.id = "work",
       .title = "Equal work",
       .question = "What is equal?",
       .reading =
           "Operations of a token's forward reading, products and sums counted apart, of the matrix products only: of the "
           "layers, their inner steps token by token, the MLPs and the output. The MLP is made as wide as the budget "
           "leaves, in steps of 8, which is within 3 % where a model can meet it at all: at T = 4096 softmax attention "
           "alone takes more than the budget, so there it has the narrowest MLP, of 16, and does more work than the others: "
           "1159 thousand operations a token for 426 of TTT-E2E. The claim on TTT-E2E at the longest windows compares with just "
           "this model, which is no comparison at equal work: its narrow MLP may cost it more than what is measured. Programs in blocks do other work, and training is not counted: the "
           "derivative of an inner step costs more than that of attention.",
       .pictures = {work_table(results)}}};
}

}  // namespace

Experiment context() {
  return {
      .name = "context",
      .title = "What a longer context is worth",
      .shows =
          "loss by length of the context and by position, at equal work, of six sequence layers and of fine-tuning",
      .source = "Learning to (learn at test time): RNNs with expressive hidden states, section 3",
      .quick_minutes = 4,
      .full_minutes = 13,
      .quick_seeds = 3,
      .full_seeds = 3,
      .rows =
          [](const Settings& s) {
            std::vector<std::string> out{kText};
            for (const ContextModel& model : context_models())
              for (const std::int64_t length : lengths_of(s)) out.push_back(row_of(model, length));
            return out;
          },
      .run = run,
      .claims = claims(),
      .views = views};
}

}  // namespace nestgrad::reproduce
