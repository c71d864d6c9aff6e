// learners: the published systems as the engine sees them: what they are made of, which form follows from
// their traces and why, and the battery of proofs.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <nlohmann/json.hpp>

#include "models/language_model.h"
#include "programs/other_learners.h"
#include "programs/program.h"
#include "programs/programs.h"
#include "ttt/conformance.h"
#include "ttt/explain.h"

using namespace nestgrad;

namespace {

using Json = nlohmann::ordered_json;

struct Sizes {
  std::int64_t heads = 2, dim = 16, chunk = 16, length = 256, batch = 1;
  ttt::ProgramSizes program() const {
    return {.batch = batch, .heads = heads, .dim = dim, .time = length, .chunk = chunk};
  }
};

Json slower(const ttt::FormPlan& plan) {
  Json out = Json::array();
  for (const ttt::FormChoice form : plan.slower) out.push_back(std::string(name(form)));
  return out;
}

Json refusals(const ttt::FormPlan& plan) {
  Json out = Json::object();
  for (const auto& r : plan.refused) out[std::string(name(r.form))] = r.why;
  return out;
}

Json to_json(const ttt::System& s, const ttt::Explanation& e) {
  return {{"name", s.name},           {"title", s.title},
          {"source", s.source},       {"model", e.model},
          {"inner_loss", e.loss},     {"optimiser", e.optimizer},
          {"gates", e.gates},         {"unread_gates", e.unread_gates},
          {"policy", e.policy.str()}, {"form", std::string(name(e.plan.form))},
          {"slower", slower(e.plan)}, {"refused", refusals(e.plan)}};
}

std::vector<std::string> all_forms() {
  std::vector<std::string> forms = ttt::form_names();
  std::erase(forms, "automatic");
  return forms;
}

Json to_json(const OtherLearner& o) {
  Json refused = Json::object();
  for (const std::string& form : all_forms()) refused[form] = o.why_no_form;
  return {{"name", o.name},         {"title", o.title},
          {"source", o.source},     {"model", o.model},
          {"inner_loss", o.loss},   {"optimiser", o.optimizer},
          {"gates", Json::array()}, {"unread_gates", Json::array()},
          {"policy", o.policy},     {"form", nullptr},
          {"runs_as", o.form},      {"slower", Json::array()},
          {"refused", refused}};
}

void list(bool json) {
  Json all = Json::array();
  for (const ttt::System& s : ttt::systems()) {
    const ttt::Explanation e = ttt::explain(s, Sizes().program());
    fmt::print("{:<24} {}\n{:<24} {}; {}; {}; {}\n{:<24} form: {}\n", s.name, s.title, "", e.model, e.loss,
               e.optimizer, e.policy.str(), "", name(e.plan.form));
    all.push_back(to_json(s, e));
  }
  for (const OtherLearner& o : other_learners()) {
    fmt::print("{:<24} {}\n{:<24} {}\n", o.name, o.title, "", o.why_no_system);
    all.push_back(to_json(o));
  }
  if (json) print_json({{"learners", all}});
}

// Explains a learner that is no system; its form is always the one given.
void explain(const OtherLearner& o, const Sizes& sizes, const std::string& form, std::int64_t slices,
             bool json) {
  if (form != "automatic") throw FormError(fmt::format("[form] {} is impossible: {}", form, o.why_no_form));
  if (sizes.length % slices != 0)
    throw ConfigError(
        fmt::format("[explain] {} tokens cannot be cut into {} slices of one length", sizes.length, slices));
  LanguageModelConfig config;
  config.ttt_layer_type = layer_type(std::string(o.name));
  config.num_attention_heads = sizes.heads;
  if (const std::string why = why_not_cut(config, sizes.length / slices, slices); !why.empty())
    throw ConfigError("[explain] " + why);
  fmt::print(
      "{} ({})\nmodel      {}\ninner loss {}\noptimiser  {}\npolicy     {}\nform       {}\nnot {}: {}\n",
      o.title, o.source, o.model, o.loss, o.optimizer, o.policy, o.form, fmt::join(all_forms(), ", "),
      o.why_no_form);
  if (slices > 1) fmt::print("{}", ttt::SlicePlan().str());
  if (!json) return;
  Json out = to_json(o);
  if (slices > 1) out["slices"] = std::string(name(ttt::SlicePlan().form));
  print_json(out);
}

void explain(const std::string& which, const Sizes& sizes, const std::string& form, std::int64_t slices,
             bool json) {
  if (const OtherLearner* other = find_other_learner(which))
    return explain(*other, sizes, form, slices, json);
  const ttt::System& s = ttt::system_named(which);
  const ttt::Explanation e = ttt::explain(s, sizes.program(), ttt::form_named(form), slices);
  fmt::print("{} ({})\n{}", s.title, s.source, e.str());
  if (!json) return;
  Json out = to_json(s, e);
  if (e.slices) out["slices"] = std::string(name(e.slices->form));
  print_json(out);
}

void check(const std::vector<std::string>& names, bool json) {
  Json all = Json::object();
  std::vector<std::string> failed;
  for (const std::string& which : names) {
    const ttt::System& s = ttt::system_named(which);
    const auto start = std::chrono::steady_clock::now();
    const ttt::ConformanceReport report = ttt::conformance(s);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    fmt::print("{} ({:.1f} s)\n", s.name, seconds);
    Json checks = Json::object();
    std::string text = report.str();
    for (std::size_t at = 0, end; at < text.size(); at = end + 1) {
      end = text.find('\n', at);
      fmt::print("  {}\n", text.substr(at, end - at));
    }
    pass_on();  // proofs take long
    for (const Claim& c : report.checks)
      checks[c.claim] = c.applies
                            ? Json{{"error", c.error}, {"tolerance", c.tolerance}, {"passed", c.holds()}}
                            : Json{{"skipped", c.note}};
    all[which] = checks;
    if (!report.passed()) failed.push_back(which);
  }
  if (json) print_json({{"passed", failed.empty()}, {"checks", all}});
  if (!failed.empty()) throw ValueError(fmt::format("not proved: {}", fmt::join(failed, ", ")));
}

}  // namespace

int nestgrad::programs::learners(int argc, char** argv) {
  CLI::App app{
      "Lists the published learners, explains which "
      "form follows from a learner's trace, and proves "
      "that all its forms are the same learner.",
      "learners"};
  bool json = false, all = false;
  std::string which, form = "automatic";
  Sizes sizes;
  std::int64_t slices = 1;
  const std::vector<std::string> names = system_names();
  std::vector<std::string> explained = names;
  for (const OtherLearner& o : other_learners()) explained.emplace_back(o.name);
  app.add_flag("--json", json, "Last line of output: the results as one JSON object");
  CLI::App* explaining = app.add_subcommand("explain", "The form that is chosen, and why not a faster one");
  explaining->add_option("name", which, "Learner")->required()->check(CLI::IsMember(explained));
  explaining->add_option("--heads", sizes.heads, "Heads")->check(positive, "POSITIVE")->capture_default_str();
  explaining->add_option("--dim", sizes.dim, "Features of one head")
      ->check(positive, "POSITIVE")
      ->capture_default_str();
  explaining->add_option("--chunk", sizes.chunk, "Tokens in a chunk, where the learner has chunks")
      ->check(positive, "POSITIVE")
      ->capture_default_str();
  explaining->add_option("--length", sizes.length, "Tokens in the sequence")
      ->check(positive, "POSITIVE")
      ->capture_default_str();
  explaining->add_option("--form", form, "Ask for this form; an error says why it is impossible")
      ->check(CLI::IsMember(ttt::form_names()))
      ->capture_default_str();
  explaining->add_option("--batch", sizes.batch, "Sequences")
      ->check(positive, "POSITIVE")
      ->capture_default_str();
  explaining
      ->add_option("--slices", slices,
                   "Also how it goes along sequences that are cut into so many, each at a process of its own")
      ->check(positive, "POSITIVE");
  CLI::App* checking = app.add_subcommand("check", "The battery of proofs");
  checking->add_option("name", which, "Learner")->check(system_name());
  checking->add_flag("--all", all, "Every learner");
  for (CLI::App* sub : {explaining, checking})
    sub->add_flag("--json", json, "Last line of output: the results as one JSON object");
  app.require_subcommand(0, 1);
  return run_program(argc, argv, app, [&] {
    if (*explaining) return explain(which, sizes, form, slices, json);
    if (!*checking) return list(json);
    if (all == !which.empty())
      throw CLI::ValidationError("name", "wants a learner, or --all, one of the two");
    check(all ? names : std::vector<std::string>{which}, json);
  });
}
