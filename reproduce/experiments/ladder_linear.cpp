// From LaCT to linear attention, a part less at a time ('Test-time training with KV binding is secretly linear attention',
// Table 2): what each part is worth, and which variants can take all chunks at once.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "reproduce/claims.h"
#include "reproduce/experiments/catalogue.h"
#include "reproduce/language_runs.h"
#include "ttt/claim.h"
#include "ttt/explain.h"

namespace nestgrad::reproduce {

namespace {

// The paper's: view synthesis in dB, image classes in percent (Table 2).
struct Variant {
  std::string name, learner;
  double views, classes;
};
const std::vector<Variant> kVariants{{"LaCT", "lact", 25.94, 79.34},
                                     {"V1 only the last layer learns", "lact-v1", 25.97, 79.63},
                                     {"V2 no weight norm", "lact-v2", 25.93, 79.63},
                                     {"V3 a single layer", "lact-v3", 25.71, 79.39},
                                     {"V4 one rate for all tokens", "lact-v4", 25.70, 79.39},
                                     {"V5 no momentum", "lact-v5", 25.70, 79.39},
                                     {"V6 no Muon: linear attention", "lact-v6", 25.73, 79.54}};
const std::string& variant(std::size_t number) { return kVariants.at(number).name; }  // 0: LaCT itself
constexpr std::size_t kFirstAtOnce = 2;  // from this one on, chunks can be taken at once

LanguageRun run_of(const Variant& v, const Settings& settings) {
  LanguageRun run;
  run.model = model_of(64, 2, 2, 64);
  run.system = ttt::system_named(v.learner);
  run.context = settings.full() ? 512 : 256;
  run.steps = 650;
  run.lr = 0.01;
  return run;
}

// The form that takes most chunks at once; dual where none takes several.
ttt::FormChoice widest_form(const Variant& v) {
  const ttt::Explanation e =
      ttt::explain(ttt::system_named(v.learner), {.batch = 1, .dim = 8, .time = 32, .chunk = 8});
  for (const ttt::FormChoice form : {ttt::FormChoice::parallel, ttt::FormChoice::chunk_parallel})
    if (std::ranges::find(e.plan.refused, form, &ttt::FormPlan::Refusal::form) == e.plan.refused.end())
      return form;
  return ttt::FormChoice::dual;
}

LogitsFn read_by(const LanguageRun& run, ttt::FormChoice form) {
  return language_model(run.model, {.form = form, .system = run.system});
}

// Tokens that a trained model reads in a second: the fastest of some calls.
double tokens_per_second(const LogitsFn& model, const StateDict& params, const Array& tokens) {
  const TracedModel traced =
      trace_model(DType::f32, {tokens.spec()}, [&](ParamTable& table, const std::vector<Tensor>& in) {
        ttt::Stream stream;
        return std::vector<Tensor>{next_token_loss(model, Params(table), in[0], stream)};
      });
  const std::vector<Array> inputs = traced.bind({tokens}, {&params});
  Plan plan = traced.function.plan();
  double best = std::numeric_limits<double>::infinity();
  for (int call = 0; call < 4; ++call) {
    const auto start = std::chrono::steady_clock::now();
    plan.run(inputs);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return static_cast<double>(tokens.shape()[0] * (tokens.shape()[1] - 1)) / best;
}

Measured run(const Task& task) {
  Measured out;
  const auto v = std::ranges::find(kVariants, task.row, &Variant::name);
  const LanguageRun r = run_of(*v, task.settings);
  const std::unique_ptr<Trainer> trainer = trainer_of(r, task);
  out.curves["training loss"] = binned(train(*trainer, r, task, out), 50);
  measure(*trainer, r, out);
  const StateDict params = trainer->parameters();
  const Array tokens = trainer->validation_windows(r.batch);
  const LogitsFn recurrent = read_by(r, ttt::FormChoice::dual);
  out.clock["recurrent"] = tokens_per_second(recurrent, params, tokens);
  const ttt::FormChoice widest = widest_form(*v);
  out.numbers["forms that take chunks at once"] = widest != ttt::FormChoice::dual;
  if (widest == ttt::FormChoice::dual) return out;
  const LogitsFn at_once = read_by(r, widest);
  out.clock["at once"] = tokens_per_second(at_once, params, tokens);
  const Apart apart = apart_in_f64(at_once, recurrent, params, trainer->validation_windows(1));
  out.numbers["losses apart from the recurrent form (f64)"] = apart.losses;
  out.numbers["gradients apart from the recurrent form (f64)"] = apart.gradients;
  return out;
}

// ---- what must come out ----

constexpr double kLosses = 1e-10, kGradients = 1e-8;

// Of every run: has it a form that takes chunks at once where it should, and is it the same function?
struct Forms {
  bool as_claimed = true;
  std::size_t runs = 0;
  double losses = 0, gradients = 0;  // the largest
};

Forms forms_of(const Results& results, std::size_t from, std::size_t to) {
  Forms out;
  for (std::size_t i = from; i < to; ++i)
    for (const std::uint64_t seed : results.seeds()) {
      const Measured* m = results.finished(variant(i), seed);
      if (!m) continue;
      ++out.runs;
      const bool at_once = m->numbers.at("forms that take chunks at once") > 0;
      out.as_claimed = out.as_claimed && at_once == (i >= kFirstAtOnce);
      if (!at_once) continue;
      out.losses = worse(out.losses, m->numbers.at("losses apart from the recurrent form (f64)"));
      out.gradients = worse(out.gradients, m->numbers.at("gradients apart from the recurrent form (f64)"));
    }
  return out;
}

std::vector<DeclaredClaim> claims() {
  const auto costs_little = [](std::size_t number, const std::string& what) {
    return within(variant(number), variant(number - 1), "loss", 0.03,
                  fmt::format("V{}: {} changes the loss by less than 0.03", number, what));
  };
  return {
      exact("LaCT and V1 must be run chunk after chunk; V2 to V6 can take chunks at once and answer the same "
            "(f64: losses to 1e-10, gradients to 1e-8)",
            [](const Results& results) {
              const Forms f = forms_of(results, 0, kVariants.size());
              if (f.runs == 0) return Exact{};
              return Exact{f.as_claimed && f.losses <= kLosses && f.gradients <= kGradients,
                           fmt::format("losses {:.2g}, gradients {:.2g}{}", f.losses, f.gradients,
                                       f.as_claimed ? "" : "; other forms than claimed"),
                           kVariants.size() * results.seeds().size() - f.runs};
            }),
      costs_little(1, "that only the last layer learns"),
      costs_little(2, "leaving the weight norm out"),
      below(variant(2), variant(3), "loss", "V3: a single layer in the place of the SwiGLU costs something"),
      costs_little(4, "one rate for all tokens"),
      costs_little(5, "leaving momentum out"),
      costs_little(6, "leaving Muon out"),
      within(variant(6), variant(0), "loss", 0.05,
             "V6, linear attention, is within 0.05 of LaCT: all parts together are worth little")};
}

// ---- the page ----

std::string change(double before, double after) { return fmt::format("{:+.2f}", after - before); }

std::vector<ReportView> views(const Results& results) {
  Table losses{
      "Table 2",
      {"variant", "paper, views, dB (Table 2)", "to the variant before", "paper, classes, % (Table 2)",
       "to the variant before", "ours, nats per byte", "to the variant before", "to LaCT"}};
  Table speed{"Tokens a second, here, reading",
              {"variant", "form that takes most at once", "chunk after chunk", "at once", "times",
               "losses apart (f64)", "gradients apart (f64)"}};
  Intervals picture{"Difference to LaCT (below 0: better)", "nats per byte"};
  picture.line = 0;
  for (std::size_t i = 0; i < kVariants.size(); ++i) {
    const Variant& v = kVariants[i];
    if (i > 0) add_difference(picture, results, v.name, variant(0), "loss");
    losses.rows.push_back({v.name, fmt::format("{:.2f}", v.views),
                           i ? change(kVariants[i - 1].views, v.views) : "", fmt::format("{:.2f}", v.classes),
                           i ? change(kVariants[i - 1].classes, v.classes) : "",
                           mean_text(results.of(v.name, "loss")),
                           i ? difference_text(results, v.name, variant(i - 1), "loss") : "",
                           i ? difference_text(results, v.name, variant(0), "loss") : ""});
    const ttt::FormChoice widest = widest_form(v);
    const bool at_once = widest != ttt::FormChoice::dual;
    const double slow = results.clock(v.name, "recurrent"), fast = results.clock(v.name, "at once");
    const Forms forms = forms_of(results, i, i + 1);
    speed.rows.push_back(
        {v.name, at_once ? std::string(ttt::name(widest)) : "none", format_number(slow),
         at_once ? format_number(fast) : "", at_once ? fmt::format("{:.2f}", fast / slow) : "",
         at_once ? format_number(forms.losses) : "", at_once ? format_number(forms.gradients) : ""});
  }
  return {
      {.id = "ladder",
       .title = "From LaCT to linear attention",
       .question = "Which parts of LaCT does a language model need?",
       .reading =
           "Every variant has a part less than the one before, and the last is linear attention that is written to in "
           "chunks of 64. The paper finds that most parts can be left out at little cost: it trains view synthesis and "
           "image classification; a positive difference is better there, and a negative one here. In its column of "
           "classes V1 and V2 are the same model, and so are V3, V4 and V5; what V6 leaves out there is the "
           "normalisation of gradients. Its figures for language are not at hand, so there is no column of them.\n\n"
           "Two things make differences small here. As LaCT's language model has it, each layer also has causal attention over the "
           "last 64 tokens: a memory counts for what lies further back, at most the rest of the context. And bytes of "
           "program text repeat what is near. That parts cost little says that this task does not need them; that "
           "another would not is not said.\n\n"
           "AdamW's rate, 0.01, was chosen once for all variants, on a seed that is not among these: after as many steps with 0.003 "
           "none was better than 2.41 there, and with 0.01 six of the seven were. That was after these seeds had been seen with "
           "0.003, where every claim on losses was open too; claims and margins are those from before. Single rates are not those of the paper: V4 to V6 have 0.1, the variants before them a learnt rate for each "
           "token.",
       .pictures = {losses, picture}},
      {.id = "at-once",
       .title = "Chunk after chunk, or all at once",
       .question = "When may the chunks of a sequence be learnt from at the same time?",
       .reading =
           "As soon as no gradient depends on a weight that learns, and no step on the weight that it changes: with the "
           "inner product as the loss, when only the last layer learns and the weight norm is left out. Momentum and "
           "Muon are no obstacle: they act on gradients, which are known beforehand. That the two ways are the same "
           "function is measured on the trained models in f64, losses and gradients. Tokens a second are of this machine's "
           "processor, in one thread that shares it with other runs: what a device with thousands of cores gains from "
           "work that need not wait, one core does not have to show.",
       .pictures = {speed}}};
}

}  // namespace

Experiment ladder_linear() {
  return {
      .name = "ladder-linear",
      .title = "From LaCT to linear attention",
      .shows =
          "LaCT, a part less at a time, down to linear attention: what the parts are worth, and from where on all "
          "chunks can be taken at once",
      .source = "Test-time training with KV binding is secretly linear attention, Table 2",
      .quick_minutes = 3,
      .full_minutes = 10,
      .rows =
          [](const Settings&) {
            std::vector<std::string> out;
            for (const Variant& v : kVariants) out.push_back(v.name);
            return out;
          },
      .run = run,
      .claims = claims(),
      .views = views};
}

}  // namespace nestgrad::reproduce
