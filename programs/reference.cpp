// reference: the numbers of a published layer's inner loop, for people who write its kernel elsewhere.
#include "ttt/reference.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/core/version.h"
#include "engine/io/file.h"
#include "engine/io/safetensors.h"
#include "programs/other_learners.h"
#include "programs/program.h"
#include "programs/programs.h"
#include "ttt/policy_text.h"

using namespace nestgrad;

namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string system, inputs, out, dtype = "f64", form = "automatic", gates = "effective";
  std::vector<std::int64_t> random;  // batch, heads, time, dim
  std::string default_settings;      // the system's own policy, as --policy has it
  bool describe = false, json = false, seed_given = false;
  ttt::ReferenceOptions reference;

  ttt::ReferenceSizes sizes() const {
    if (random.empty()) return {};
    return {.batch = random[0], .heads = random[1], .time = random[2], .dim = random[3]};
  }
};

Json to_json(const std::vector<ttt::ReferenceTensor>& tensors) {
  Json out = Json::array();
  for (const ttt::ReferenceTensor& t : tensors)
    out.push_back({{"name", t.name},
                   {"dtype", name(t.spec.dtype)},
                   {"shape", t.spec.shape},
                   {"axes", t.axes},
                   {"optional", t.optional},
                   {"text", t.text}});
  return out;
}

Json facts_of(const std::map<std::string, std::string>& metadata) {
  Json out = Json::object();
  for (const auto& [key, value] : metadata)
    if (!key.starts_with("axes.") && key != "inputs" && key != "outputs") out[key] = value;
  return out;
}

void print(std::string_view title, const std::vector<ttt::ReferenceTensor>& tensors) {
  fmt::print("{}\n", title);
  for (const ttt::ReferenceTensor& t : tensors)
    fmt::print("  {:<24} {:<18} [{}]{}\n      {}\n", t.name, to_string(t.spec), t.axes,
               t.optional ? " (may be left out)" : "", t.text);
}

// A policy, a form or sizes that the system does not take are a wrong call.
ttt::ReferenceDescription checked_description(const Options& o, const ttt::ReferenceSizes& sizes) {
  const auto refuse = [](const Error& e) { throw CLI::ValidationError(e.what()); };
  try {
    return ttt::describe_reference(ttt::system_named(o.system), sizes, o.reference);
  } catch (const ConfigError& e) {
    refuse(e);
  } catch (const FormError& e) {
    refuse(e);
  } catch (const ShapeError& e) {
    refuse(e);
  }
  return {};
}

void describe(const Options& o) {
  const ttt::ReferenceDescription d = checked_description(o, o.sizes());
  for (const char* key : {"title", "source", "model", "inner_loss", "constants", "start", "optimiser",
                          "gradient", "update", "policy", "settings", "form"})
    fmt::print("{:<11} {}\n", key, d.metadata.at(key));
  print(o.reference.raw ? "\nInputs, as the layer's projections leave them (--gates raw)"
                        : "\nInputs, as the inner loop is given them (--gates effective)",
        d.inputs);
  print("\nOutputs", d.outputs);
  if (!o.json) return;
  Json out = facts_of(d.metadata);
  out["inputs"] = to_json(d.inputs);
  out["outputs"] = to_json(d.outputs);
  print_json(out);
}

ttt::ReferenceSizes sizes_of(const ttt::System& system, const ttt::NamedArrays& inputs, const Shape& k,
                             const ttt::ReferenceOptions& options) {
  if (std::ranges::find(k, 0) == k.end()) return ttt::reference_sizes(system, inputs, options);
  return {.batch = k[0], .heads = k[1], .time = k[2], .dim = k[3]};  // of which none is a reference
}

// What the file has; of one that this program wrote, the inputs, which must be for the same computation.
ttt::NamedArrays inputs_in(const Options& o) {
  SafeTensors file = read_safetensors(o.inputs);
  const auto made = file.metadata.find("outputs");
  if (made == file.metadata.end()) return file.tensors;
  const auto require = [&](const std::string& key, const std::string& option, const std::string& ours) {
    const auto theirs = file.metadata.find(key);
    if (theirs != file.metadata.end() && theirs->second != ours)
      throw ConfigError(fmt::format("{}: was written with {} {}; give the same, its numbers are for no other",
                                    printable(o.inputs), option, theirs->second));
  };
  require("gates", "--gates", o.gates);
  if (o.reference.raw) require("base_lr", "--base-lr", fmt::format("{}", o.reference.base_lr));
  const auto system = file.metadata.find("system");
  if (o.reference.policy.empty() && system != file.metadata.end() && system->second == o.system)
    require("settings", "--policy", o.default_settings);
  std::istringstream names(made->second);
  for (std::string name; names >> name;) file.tensors.erase(name);
  return file.tensors;
}

void compute(const Options& o) {
  const ttt::System& system = ttt::system_named(o.system);
  ttt::NamedArrays inputs;
  if (o.inputs.empty()) {
    checked_description(o, o.sizes());
    inputs = ttt::random_inputs(system, o.sizes(), o.reference);
  } else {
    inputs = inputs_in(o);
    if (const auto k = inputs.find("k"); k != inputs.end() && k->second.shape().size() == 4)
      checked_description(o, sizes_of(system, inputs, k->second.shape(), o.reference));
    if (o.seed_given && inputs.contains("cotangent.output"))
      throw CLI::ValidationError("--seed", "nothing is drawn: the file has all inputs; leave it out");
  }
  { const AtomicFile tried(o.out); }  // that it cannot be written is found before it is computed
  const ttt::ReferenceResult r = ttt::reference(system, inputs, o.reference);
  SafeTensors file{r.inputs, r.description.metadata, {}};
  file.tensors.insert(r.outputs.begin(), r.outputs.end());
  file.metadata["version"] = NESTGRAD_VERSION;
  write_safetensors(o.out, file);
  const auto& facts = r.description.metadata;
  fmt::print("{}, {}: {} inputs and {} outputs, {}, in {}\n", facts.at("title"), facts.at("policy"),
             r.inputs.size(), r.outputs.size(), o.dtype, printable(o.out));
  if (!o.json) return;
  Json out = facts_of(file.metadata);
  out["out"] = o.out;
  for (const auto& [key, arrays] : {std::pair{"inputs", &r.inputs}, std::pair{"outputs", &r.outputs}}) {
    out[key] = Json::object();
    for (const auto& [name, value] : *arrays) out[key][name] = value.shape();
  }
  print_json(out);
}

// BATCH,HEADS,TIME,DIM
std::vector<std::int64_t> sizes_in(const std::string& text) {
  constexpr std::int64_t kMost = 1 << 20;
  std::vector<std::int64_t> out;
  std::istringstream parts(text + ",");
  for (std::string part; std::getline(parts, part, ',');) {
    const bool is_number =
        !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == part.npos;
    out.push_back(is_number ? std::stoll(part) : 0);
  }
  if (out.size() != 4 || std::ranges::any_of(out, [](std::int64_t n) { return n < 1 || n > kMost; }))
    throw CLI::ValidationError(
        "--random", fmt::format("{}: wants four integers from 1 to {}: BATCH,HEADS,TIME,DIM", text, kMost));
  return out;
}

void add_options(CLI::App& app, Options& o) {
  app.add_option("--system", o.system, "The layer (learners lists them)")->required()->check(system_name());
  auto* inputs =
      app.add_option("--inputs", o.inputs, "File with the named inputs (safetensors); --describe lists them")
          ->check(not_empty);
  auto* random = app.add_option_function<std::string>(
                        "--random", [&o](const std::string& text) { o.random = sizes_in(text); },
                        "Draw the inputs instead, of these sizes: BATCH,HEADS,TIME,DIM")
                     ->excludes(inputs);
  app.add_option("--out", o.out, "File that is written: inputs, outputs, and what they are (safetensors)")
      ->check(not_empty);
  app.add_flag("--describe", o.describe,
               "Names, shapes and formulas of all inputs and outputs; computes nothing");
  app.add_option("--seed", o.reference.seed, "Of what is drawn: inputs, and a cotangent that is not given")
      ->capture_default_str();
  app.add_option(
      "--policy", o.reference.policy,
      "Settings that replace the system's: chunk=16,update=per-chunk,read=before-write,steps=1,..");
  app.add_option("--dtype", o.dtype, "Of the computation")
      ->check(CLI::IsMember({"f64", "f32"}))
      ->capture_default_str();
  app.add_option("--form", o.form, "Form of the inner loop; all give the same numbers")
      ->check(CLI::IsMember(ttt::form_names()))
      ->capture_default_str();
  app.add_option("--gates", o.gates,
                 "effective: q, k, v and gates as the inner loop, and a kernel, is given them; "
                 "raw: as the layer's projections leave them")
      ->check(CLI::IsMember({"raw", "effective"}))
      ->capture_default_str();
  app.add_option("--state-every", o.reference.state_every,
                 "Tokens between the states that are given (0: a chunk)")
      ->check(not_negative, "NONNEGATIVE")
      ->capture_default_str();
  app.add_option("--base-lr", o.reference.base_lr,
                 "Of systems with position rates, with --gates raw or --random")
      ->capture_default_str();
  app.add_flag("--intermediates", o.reference.intermediates,
               "Inner gradients, predictions, and the views that raw inputs become");
  app.add_flag("--random-start", o.reference.random_start,
               "With --random: starts of the weights too, start.*; slots of the optimiser start as ever")
      ->needs(random);
  app.add_flag("--random-final-cotangent", o.reference.random_final_cotangent,
               "With --random: cotangents of the final state too, cotangent.final.*")
      ->needs(random);
  app.add_flag("--json", o.json, "Last line of output: what was done as one JSON object");
  add_device_option(app);
}

// Options that would change nothing.
void check_used(const CLI::App& app, const Options& o) {
  const auto refuse = [&](const char* option, const std::string& why) {
    if (app.count(option) > 0) throw CLI::ValidationError(option, why + "; leave it out");
  };
  if (o.describe)
    for (const char* option : {"--inputs", "--out", "--seed", "--random-start", "--random-final-cotangent"})
      refuse(option, "--describe reads, draws and writes no numbers");
  if (!ttt::system_named(o.system).position_rates)
    refuse("--base-lr", o.system + " has no position rates, which it is a factor of");
  if (!o.inputs.empty() && !o.reference.raw)
    refuse("--base-lr", "the rates of --inputs are taken as they are, unless --gates raw is given");
}

}  // namespace

int nestgrad::programs::reference(int argc, char** argv) {
  CLI::App app{
      "Computes a published layer's inner loop: outputs, losses, states and gradients, from inputs in a file\n"
      "or drawn, into one file that is a whole test case for a kernel (docs/kernel-authors.md).",
      "reference"};
  Options o;
  add_options(app, o);
  return run_program(argc, argv, app, [&] {
    o.reference.dtype = o.dtype == "f64" ? DType::f64 : DType::f32;
    o.reference.form = ttt::form_named(o.form);
    o.reference.raw = o.gates == "raw";
    o.seed_given = app.count("--seed") > 0;
    check_used(app, o);
    try {
      const ttt::ReferenceSizes sizes = o.sizes();
      o.default_settings = ttt::settings_of(
          ttt::overridden(ttt::system_named(o.system).policy({sizes.heads, sizes.dim, o.reference.chunk}),
                          o.reference.policy));
    } catch (const ConfigError& e) {
      throw CLI::ValidationError("--policy", e.what());
    }
    if (o.describe) return describe(o);
    if (o.inputs.empty() && o.random.empty())
      throw CLI::ValidationError("--inputs",
                                 "wants a FILE, or give --random BATCH,HEADS,TIME,DIM or --describe");
    if (o.out.empty()) throw CLI::ValidationError("--out", "wants the name of the file to write");
    compute(o);
  });
}
