// Four observations that 'Test-time training with KV binding is secretly linear attention' (section 4) finds at odds with a
// memory of keys and values: ascent trains as well as descent, the query may be the key, more inner steps at test time
// make the inner loss better and the answer worse, and queries do not look like keys. Here with controls.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/traced_model.h"
#include "reproduce/claims.h"
#include "reproduce/experiments/catalogue.h"
#include "reproduce/experiments/paradoxes_page.h"
#include "reproduce/language_runs.h"
#include "reproduce/separation.h"
#include "ttt/learners/lact.h"

namespace nestgrad::reproduce {

namespace {

using namespace paradox;

// ---- models ----

constexpr std::int64_t kWidth = 64, kHeads = 2, kChunk = 64;

// Projections of the input as every layer has them, or with the key in the place of the query; what they give can be
// looked at.
class Projections : public ttt::Task {
 public:
  Projections(const Params& params, std::int64_t width, std::string name, bool query_is_key)
      : own_(params, width), name_(std::move(name)), query_is_key_(query_is_key) {}
  Joined views(Tensor x, ttt::Stream& stream) const override {
    Joined out = own_.views(x, stream);
    if (query_is_key_) out.q = out.k;
    if (stream.tap_inner_loops) stream.tap(name_ + ".Q", out.q), stream.tap(name_ + ".K", out.k);
    return out;
  }

 private:
  ttt::ProjectedViews own_;
  std::string name_;
  bool query_is_key_;
};

void set_task(LanguageRun& run, bool query_is_key) {
  run.task = [=](const Params& p, std::int64_t width, const std::string& name) {
    return std::make_unique<Projections>(p, width, name, query_is_key);
  };
}

LanguageRun sized(LanguageRun run, const Settings& settings) {
  run.context = settings.full() ? 512 : 256;
  run.steps = 600;
  return run;
}

LanguageRun lact_run(const Settings& settings, const std::function<void(ttt::Policy&)>& change = {}) {
  LanguageRun run;
  run.model = model_of(kWidth, kLayers, kHeads, kChunk);
  run.system = ttt::system_named("lact");
  if (change) run.system = with_policy(*run.system, change);
  set_task(run, false);
  return sized(run, settings);
}

// n inner steps a chunk; `share`: each of them 1/n as long. LaCT's rates weigh tokens against each other, and Muon then
// gives a step its length: so it is behind Muon that it is made shorter.
LanguageRun lact_with_steps(const Settings& settings, int n, bool share) {
  LanguageRun run = lact_run(settings, [n](ttt::Policy& p) { p.steps = n; });
  if (share)
    run.system->learner = [n](const Params& p, const ttt::SystemSizes& s) {
      return std::make_unique<ttt::Composed>(ttt::swiglu(p, {s.heads, s.dim, 2 * s.dim, s.dim}),
                                             ttt::inner_product(),
                                             ttt::InnerOptimizer()
                                                 .momentum(ttt::gate("momentum"))
                                                 .muon(ttt::muon_tuned())
                                                 .scale(1.0 / n)
                                                 .weight_norm());
    };
  return run;
}

LanguageRun softmax_run(const Settings& settings, bool query_is_key) {
  LanguageRun run;
  run.model = model_of(kWidth, kLayers, kHeads, kChunk, "attention");
  set_task(run, query_is_key);
  return sized(run, settings);
}

LanguageRun linear_run(const Settings& settings, bool ascent) {
  LanguageRun run;
  run.model = model_of(kWidth, kLayers, kHeads, 16);
  run.system = with_policy(ttt::system_named("ttt-linear"), [=](ttt::Policy& p) { p.ascent = ascent; });
  return sized(run, settings);
}

// ---- what a run measures ----

// The same weights read another way.
Validation read_as(const LanguageRun& run, const Task& task, const StateDict& params) {
  const std::unique_ptr<Trainer> reader = trainer_of(run, task);
  reader->start_from(params);
  return reader->validate(reader->validation_windows(run.windows));
}

// The inner loss behind each chunk's steps, a mean over layers and tokens.
double inner_loss(const Validation& v) {
  double sum = 0, count = 0;
  for (const Validation::Inner& layer : v.inner)
    for (const double x : layer.after) sum += x, count += 1;
  return sum / count;
}

void measure_steps(const StateDict& params, const Task& task, Measured& out) {
  for (const int n : kSteps)
    for (const bool share : {false, true}) {
      if (share && n == 1) continue;
      const Validation v = read_as(lact_with_steps(task.settings, n, share), task, params);
      const auto name = [&](const std::string& what) {
        return share ? shorter(what, n) : with_steps(what, n);
      };
      out.numbers[name("loss")] = v.loss;
      out.numbers[name("inner loss")] = inner_loss(v);
    }
}

// Q and K of every layer, on some tokens of each validation window.
void measure_separation(const LanguageRun& run, const Trainer& trainer, std::uint64_t seed,
                        const std::string& prefix, Measured& out) {
  constexpr std::int64_t kBatch = 4, kEvery = 8, kPairsEvery = 64;
  constexpr int kPermutations = 199;
  const std::int64_t width = run.context + 1;
  const TracedModel model = trace_model(
      DType::f32, {{DType::i32, {kBatch, run.context}}},
      [&](ParamTable& table, const std::vector<Tensor>& in) {
        ttt::Stream stream;
        stream.tap_inner_loops = true;
        LanguageModel(run.model, Params(table), {.system = run.system, .task = run.task})
            .logits(in[0], stream);
        std::vector<Tensor> taps;
        for (std::int64_t i = 0; i < kLayers; ++i)
          for (const char* view : {"Q", "K"})
            taps.push_back(stream.taps().at(fmt::format("layers.{}.seq_modeling_block.{}", i, view)));
        return taps;
      });
  const StateDict params = trainer.parameters();
  std::vector<Array> inputs = model.bind({Array(DType::i32, {kBatch, run.context})}, {&params});
  Plan plan = model.function.plan();
  const Array windows = trainer.validation_windows(run.windows);
  std::vector<Sample> dense(2 * kLayers, Sample{kWidth, {}}), sparse = dense;
  for (std::int64_t first = 0; first + kBatch <= windows.shape()[0]; first += kBatch) {
    for (std::int64_t b = 0; b < kBatch; ++b)
      std::ranges::copy(windows.as<std::int32_t>().subspan(static_cast<std::size_t>((first + b) * width),
                                                           static_cast<std::size_t>(run.context)),
                        inputs[0].as<std::int32_t>().begin() + b * run.context);
    const std::vector<Array> found = plan.run(inputs);
    for (std::size_t i = 0; i < found.size(); ++i)
      for (std::int64_t row = kEvery - 1; row < kBatch * run.context; row += kEvery)
        for (std::int64_t j = 0; j < kWidth; ++j) {
          const double x = found[i].at(row * kWidth + j);
          dense[i].numbers.push_back(x);
          if ((row + 1) % kPairsEvery == 0) sparse[i].numbers.push_back(x);
        }
  }
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const auto q = static_cast<std::size_t>(2 * layer), k = q + 1;
    out.numbers[of_layer(prefix + "AUC", layer)] = linear_probe(dense[q], dense[k]);
    const Discrepancy d = discrepancy(sparse[q], sparse[k], kPermutations, seed);
    out.numbers[of_layer(prefix + "MMD^2", layer)] = d.squared;
    out.numbers[of_layer(prefix + "MMD p", layer)] = d.p;
  }
}

Measured run(const Task& task) {
  Measured out;
  const Settings& s = task.settings;
  const bool is_lact = task.row == kLact, is_softmax = task.row == kSoftmax, is_linear = task.row == kLinear;
  const LanguageRun r = task.row == kLactAscent ? lact_run(s, [](ttt::Policy& p) { p.ascent = true; })
                        : task.row == kLactKey  ? lact_run(s, [](ttt::Policy& p) { p.query_is_key = true; })
                        : is_lact               ? lact_run(s)
                        : is_linear || task.row == kLinearAscent ? linear_run(s, !is_linear)
                                                                 : softmax_run(s, task.row == kSoftmaxKey);
  const std::unique_ptr<Trainer> trainer = trainer_of(r, task);
  if (is_lact || is_softmax) measure_separation(r, *trainer, task.seed, kUntrained, out);
  train(*trainer, r, task, out, is_lact ? 0.7 : 0.95);
  measure(*trainer, r, out);
  const StateDict params = trainer->parameters();
  if (is_lact || is_softmax) measure_separation(r, *trainer, task.seed, "", out);
  if (is_lact) {
    measure_steps(params, task, out);
    out.numbers[kAscentLater] =
        read_as(lact_run(s, [](ttt::Policy& p) { p.ascent = true; }), task, params).loss;
    out.numbers[kKeyLater] =
        read_as(lact_run(s, [](ttt::Policy& p) { p.query_is_key = true; }), task, params).loss;
  }
  if (is_softmax) out.numbers[kKeyLater] = read_as(softmax_run(s, true), task, params).loss;
  if (is_linear) out.numbers[kAscentLater] = read_as(linear_run(s, true), task, params).loss;
  return out;
}

// ---- claims ----

// The largest that `fn` is for any number of inner steps above 1.
DeclaredClaim every_n(std::string text, std::function<double(const Measured& m, int n)> fn) {
  return negative(std::move(text), "nats", [=](const Results& results, std::uint64_t seed) {
    const Measured* m = results.finished(kLact, seed);
    if (!m) return kUnknown;
    std::vector<double> all;
    for (const int n : kSteps)
      if (n > 1) all.push_back(fn(*m, n));
    return largest_of(all);
  });
}

DeclaredClaim hurts_later(std::string text, const std::string& number) {
  return negative(
      std::move(text), "nats",
      [=](const Results& results, std::uint64_t seed) {
        return results.number(kLact, seed, "loss") - results.number(kLact, seed, number);
      },
      0.1);
}

// Runs that are not finite count as worse; with one of them there is no mean to be tested, and their number is.
DeclaredClaim worse_or_not_finite() {
  const auto broken = [](const Results& results) {
    return std::ranges::count_if(results.seeds(), [&](std::uint64_t seed) {
      const Measured* up = results.find(kLinearAscent, seed);
      return up && up->failed();
    });
  };
  const DeclaredClaim of_numbers = below(kLinear, kLinearAscent, "loss", "");
  const DeclaredClaim of_signs = mostly_negative(
      "",
      [](const Results& results, std::uint64_t seed) {
        const Measured* up = results.find(kLinearAscent, seed);
        const double down = results.number(kLinear, seed, "loss");
        return std::isnan(down) || !up ? kUnknown : up->failed() ? -1.0 : down - up->numbers.at("loss");
      },
      [=](const Results& results) {
        return fmt::format("{} of {} runs are not finite", broken(results), results.seeds().size());
      });
  return {
      "TTT-Linear (squared error, no symmetry): trained by ascent it is worse than by descent, or not finite",
      [=](const Results& results) { return (broken(results) > 0 ? of_signs : of_numbers).test(results); }};
}

std::vector<DeclaredClaim> claims() {
  return {
      within(kLactAscent, kLact, "loss", 0.03, "B: LaCT trained by ascent is within 0.03 nats of descent"),
      within(kLactKey, kLact, "loss", 0.03,
             "B: LaCT trained with Q := K is within 0.03 nats of the baseline"),
      every_n(
          "C: with more inner steps at test time the inner loss is below that of one, for n = 2, 4, 8 and 16 (shown: "
          "the n for which least)",
          [](const Measured& m, int n) {
            return m.numbers.at(with_steps("inner loss", n)) - m.numbers.at(with_steps("inner loss", 1));
          }),
      every_n("C: and the loss is above that of one (shown: one step's loss less that of n, likewise)",
              [](const Measured& m, int n) {
                return m.numbers.at(with_steps("loss", 1)) - m.numbers.at(with_steps("loss", n));
              }),
      hurts_later("D: ascent without retraining costs LaCT more than 0.1 nats (shown: baseline less ascent)",
                  kAscentLater),
      hurts_later("D: Q := K without retraining costs LaCT more than 0.1 nats (shown: baseline less Q := K)",
                  kKeyLater),
      worse_or_not_finite(),
      below(
          kSoftmax, kSoftmaxKey, "loss",
          "softmax attention trained with Q := K is worse by more than 0.03 nats (the paper: 'highly disruptive', "
          "without a run)",
          0.03)};
}

}  // namespace

Experiment paradoxes() {
  return {
      .name = "paradoxes",
      .title = "Four paradoxes of memories that learn",
      .shows =
          "ascent, Q := K, more inner steps and queries unlike keys, with retraining and without, beside softmax attention "
          "and a squared error",
      .source = "Test-time training with KV binding is secretly linear attention, section 4, figures 1 and 2",
      .quick_minutes = 4,
      .full_minutes = 12,
      .quick_seeds = 3,
      .full_seeds = 5,
      .rows =
          [](const Settings&) {
            return std::vector{kLact, kLactAscent, kLactKey, kSoftmax, kSoftmaxKey, kLinear, kLinearAscent};
          },
      .run = run,
      .claims = claims(),
      .views = paradoxes_views};
}

}  // namespace nestgrad::reproduce
