// inspect: opens one inner loop and shows how the outer gradient flows through its learning.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/io/file.h"
#include "look/inspection.h"
#include "models/data.h"
#include "models/tokenizer.h"
#include "programs/given_model.h"
#include "programs/inspect_images.h"
#include "programs/other_learners.h"
#include "programs/out_folder.h"
#include "programs/program.h"
#include "programs/programs.h"

using namespace nestgrad;

namespace {

constexpr int kMostTokens = 512;

struct Options {
  std::string checkpoint, tokenizer, learner, data, out = "runs/inspect";
  std::int64_t tokens = 64, token = -1, heads = 2, dim = 16, chunk = 16;
  std::optional<std::int64_t> image, level;
  std::optional<std::int64_t> layer;
  std::uint64_t seed = 0;
  bool json = false;
};

// As many whole chunks as hold the tokens asked for. called: what says how long a chunk is.
std::int64_t whole_chunks(std::int64_t tokens, std::int64_t chunk, std::string_view called) {
  const std::int64_t whole = ((tokens - 1) / chunk + 1) * chunk;
  if (whole > kMostTokens)
    throw CLI::ValidationError(
        "--tokens",
        fmt::format("{} tokens are {} in whole mini-batches of {} ({}), and a page shows {} at most; {}",
                    tokens, whole, chunk, called, kMostTokens,
                    chunk > kMostTokens ? "inspect a model with shorter ones"
                                        : fmt::format("ask for {}", kMostTokens / chunk * chunk)));
  return whole;
}

// Tokens of a chunk of the layers' learner, which may be other than the configuration's; 0: it has none.
std::int64_t own_chunk(const LanguageModelConfig& c) {
  if (c.ttt_layer_type == "attention" || c.ttt_layer_type == kEndToEnd) return 0;
  return layer_policy(c).chunk;
}

std::string text_path(const Options& o) { return o.data.empty() ? NESTGRAD_DEFAULT_DATA : o.data; }

// The first tokens of the validation text, i32 [1, time + 1], as the model of the checkpoint reads text.
Array first_tokens(const Options& o, const Checkpoint& checkpoint, std::int64_t time) {
  const ByteCorpus corpus = ByteCorpus::load(text_path(o), time + 1);
  const auto tokenizer = read_tokenizer(o.checkpoint, checkpoint.config.vocab_size, o.tokenizer);
  const auto text = corpus.bytes(Split::validation);
  constexpr std::int64_t kLongestToken = 64;  // in bytes, on average
  const std::string_view all(reinterpret_cast<const char*>(text.data()), text.size());
  const std::vector<std::int32_t> tokens =
      tokenizer->encode(all.substr(0, static_cast<std::size_t>((time + 1) * kLongestToken)));
  Array out(DType::i32, {1, time + 1});
  if (tokens.size() < static_cast<std::size_t>(out.size()))
    throw ConfigError(
        fmt::format("[inspect] the validation part of {} has {} tokens, {} are read; give more text",
                    printable(text_path(o)), tokens.size(), out.size()));
  std::copy_n(tokens.begin(), out.size(), out.as<std::int32_t>().begin());
  return out;
}

look::InspectedLoop of_learner(const Options& o) {
  const ttt::System& system = ttt::system_named(o.learner);
  const ttt::Policy policy = system.policy({o.heads, o.dim, o.chunk});
  const std::int64_t chunk = policy.chunk == ttt::Policy::kWholeSequence ? 1 : policy.chunk;
  return look::inspected_learner(system,
                                 {.batch = 1,
                                  .heads = o.heads,
                                  .dim = o.dim,
                                  .time = whole_chunks(o.tokens, chunk, "the learner's chunk"),
                                  .chunk = o.chunk},
                                 o.seed);
}

// What is inspected: what it is called, how many tokens it reads, and what makes all that there is to see.
struct Inspected {
  std::string name;
  std::int64_t tokens = 0;
  std::function<Inspection()> look;
};
using Facts = std::vector<std::pair<std::string, std::string>>;

Inspected of_loop(const Options& o, const look::InspectedLoop& loop, const InspectionOptions& options) {
  if (o.token >= loop.time())
    throw CLI::ValidationError("--token", fmt::format("there are {} tokens, counted from 0", loop.time()));
  return {loop.name, loop.time(), [=] { return inspect(loop, options); }};
}

Inspected of_checkpoint(const Options& o, const Checkpoint& checkpoint, InspectionOptions options) {
  const std::int64_t usual = checkpoint.config.mini_batch_size, own = own_chunk(checkpoint.config);
  const std::int64_t time = own > 0 && own != usual ? whole_chunks(o.tokens, own, "the learner's chunk")
                                                    : whole_chunks(o.tokens, usual, "mini_batch_size");
  if (checkpoint.config.ttt_layer_type == kEndToEnd) {
    if (o.layer || o.token >= 0)
      throw CLI::ValidationError(
          o.layer ? "--layer" : "--token",
          "is for a layer with an inner loop of its own; of ttt-e2e the whole model learns");
    const Array tokens = first_tokens(o, checkpoint, time);
    return {"a ttt-e2e language model", time,
            [=] { return inspect_end_to_end(checkpoint, tokens, options); }};
  }
  programs::check_layer(o.layer.value_or(0), checkpoint.config.num_hidden_layers);
  const Array tokens = first_tokens(o, checkpoint, time);
  options.precision = [=] { return model_precision(checkpoint, tokens); };
  return of_loop(o, inspected_layer(checkpoint, tokens, o.layer.value_or(0)), options);
}

Inspected of_images(const Options& o, vision::ImageModel kind, InspectionOptions options, Facts& facts) {
  if (!o.tokenizer.empty())
    throw CLI::ValidationError("--tokenizer", "is for text; this is the model of images");
  programs::OpenedImages opened =
      programs::opened_images(kind, {o.checkpoint, o.data, o.image, o.level, o.layer.value_or(0)});
  facts = std::move(opened.facts);
  options.precision = opened.precision;
  return of_loop(o, opened.loop, options);
}

Inspected of_model(const Options& o, const InspectionOptions& options, Facts& facts) {
  std::error_code error;
  if (!std::filesystem::exists(o.checkpoint, error))
    throw IoError(fmt::format("{}: there is no such file or folder; give the folder of a model",
                              printable(o.checkpoint)));
  if (const auto kind = vision::image_model_of(o.checkpoint)) return of_images(o, *kind, options, facts);
  for (const auto& [name, value] : {std::pair{"--image", o.image}, {"--level", o.level}})
    if (value) throw CLI::ValidationError(name, "is for a model of images; this one reads text");
  const Checkpoint checkpoint = given_model(o.checkpoint);
  facts = {{"checkpoint", o.checkpoint}, {"text", text_path(o)}};
  if (!checkpoint.assumed.empty()) facts.emplace_back("no config.json, so as published", checkpoint.assumed);
  return of_checkpoint(o, checkpoint, options);
}

// The folder of the page, which is this process's own from now on.
std::unique_ptr<FolderLock> opened_folder(const std::string& folder) {
  make_folder(folder);
  auto lock = std::make_unique<FolderLock>(folder);
  lock->remove_temporaries();
  make_folder(folder + "/views");
  FolderLock(folder + "/views").remove_temporaries();
  check_replaceable(folder, inspection_rule(folder));
  check_writable(folder,
                 {"report.html", "summary.jsonl", "graph.dot", "graph.txt", "trace.json", "views/.tried"});
  return lock;
}

void run(const Options& o) {
  check_replaceable(o.out, inspection_rule(o.out));
  ProgressLine progress(1);
  InspectionOptions options;
  options.token = o.token;
  options.progress = [&](const std::string& what, double done) { progress.update(what, done); };

  Inspected inspected;
  Facts facts;
  if (o.checkpoint.empty()) {
    inspected = of_loop(o, of_learner(o), options);
    facts = {{"learner", o.learner},
             {"task", "v is a linear map of k with noise; the outer loss asks for that map of q"},
             {"seed", std::to_string(o.seed)}};
  } else {
    inspected = of_model(o, options, facts);
  }
  const std::unique_ptr<FolderLock> lock = opened_folder(o.out);
  Inspection inspection = inspected.look();
  inspection.facts.insert(inspection.facts.begin(), facts.begin(), facts.end());
  inspection.save(o.out);

  nlohmann::ordered_json invariants = nlohmann::ordered_json::array();
  std::size_t total = 0, broken = 0;
  for (const ReportView& view : inspection.views)
    for (const Claim& c : view.claims) {
      ++total;
      if (!c.holds()) ++broken;
      fmt::print("{} {:<20} {} (error {:.3g}, tolerance {:.3g})\n", c.holds() ? "holds " : "BROKEN", view.id,
                 c.claim, c.error, c.tolerance);
      invariants.push_back({{"view", view.id},
                            {"claim", c.claim},
                            {"error", c.error},
                            {"tolerance", c.tolerance},
                            {"holds", c.holds()}});
    }
  fmt::print("{} views of {}\nreport: {}/report.html\n", inspection.views.size(), inspected.name,
             printable(o.out));
  if (o.json)
    print_json({{"name", inspected.name},
                {"tokens", inspected.tokens},
                {"report", o.out + "/report.html"},
                {"holds", broken == 0},
                {"invariants", invariants}});
  if (broken > 0) throw ValueError(fmt::format("{} of {} invariants do not hold", broken, total));
}

}  // namespace

int nestgrad::programs::inspect(int argc, char** argv) {
  CLI::App app{
      "Opens one inner loop, of a published learner, of a layer of a trained model of language or images, or of\n"
      "one that learns as a whole (ttt-e2e), and writes what there is to see of its meta-gradient: report.html,\n"
      "graph.dot (Graphviz), graph.txt, trace.json (ui.perfetto.dev), summary.jsonl and views/*.npy.",
      "inspect"};
  Options o;
  CLI::Option* checkpoint = app.add_option(
      "--checkpoint", o.checkpoint, "Folder of a model, or its file of weights (docs/published-models.md)");
  checkpoint->check(not_empty);
  CLI::Option* learner =
      app.add_option("--learner", o.learner, "A published learner, on a task that it can learn")
          ->check(system_name());
  checkpoint->excludes(learner);
  CLI::Option* layer =
      app.add_option("--layer", o.layer, "Layer of the model (0)")->check(not_negative, "NONNEGATIVE");
  CLI::Option* data = app.add_option(
      "--data", o.data,
      "What the model reads. Text: a file or a folder, of which the first window of the validation "
      "part is taken (default: the Eigen headers). Images: a folder of PNG files by class or of "
      "MNIST's files (default: a drawn character; of a model of views always a drawn scene)");
  CLI::Option* image =
      app.add_option("--image", o.image, "Which image of --data, or which drawn character or scene (0)")
          ->check(not_negative, "NONNEGATIVE");
  CLI::Option* level =
      app.add_option("--level", o.level, "Level of noise before a diffusion transformer (the middle one)")
          ->check(not_negative, "NONNEGATIVE");
  CLI::Option* tokenizer = app.add_option("--tokenizer", o.tokenizer,
                                          "tokenizer.model (default: that beside the weights, or bytes)")
                               ->check(not_empty);
  data->check(not_empty);
  for (CLI::Option* option : {layer, data, tokenizer, image, level}) option->needs(checkpoint);
  app.add_option("--tokens", o.tokens,
                 "Tokens in the sequence; rounded up to whole mini-batches. Of an image all are taken")
      ->check(CLI::Range(2, kMostTokens))
      ->capture_default_str();
  app.add_option("--token", o.token, "Token whose step is explained (default: the one in the middle)")
      ->check(not_negative, "NONNEGATIVE");
  for (CLI::Option* option : {app.add_option("--heads", o.heads, "Heads of the learner"),
                              app.add_option("--dim", o.dim, "Features of one head")})
    option->check(positive, "POSITIVE")->capture_default_str()->needs(learner);
  app.add_option("--chunk", o.chunk, "Tokens in a mini-batch, where the learner has them")
      ->check(CLI::Range(1, kMostTokens))
      ->capture_default_str()
      ->needs(learner);
  app.add_option("--seed", o.seed, "Seed of the task's numbers")->capture_default_str()->needs(learner);
  app.add_option("--out", o.out, "Folder for the results")->check(not_empty)->capture_default_str();
  app.add_flag("--json", o.json, "Last line of output: the invariants with their measured errors");
  return run_program(argc, argv, app, [&] {
    if (o.checkpoint.empty() == o.learner.empty())
      throw CLI::ValidationError("--checkpoint", "wants a DIR, or give --learner NAME");
    run(o);
  });
}
