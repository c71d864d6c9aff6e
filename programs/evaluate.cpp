// evaluate: scores a text with a trained model, and with one that goes on learning from what it has scored.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "engine/io/file.h"
#include "models/adaptation.h"
#include "models/data.h"
#include "models/tokenizer.h"
#include "programs/given_model.h"
#include "programs/program.h"
#include "programs/programs.h"

using namespace nestgrad;

namespace {

struct Options {
  std::string checkpoint, data = NESTGRAD_DEFAULT_DATA, tokenizer, adapt = "nothing";
  AdaptationOptions adaptation;
  std::int64_t segment = 256, bytes = 1 << 16;
  bool all = false, prove = false, json = false;
};

double mean_of(std::span<const double> losses) {
  double sum = 0;
  for (const double loss : losses) sum += loss;
  return sum / static_cast<double>(losses.size());
}

// Means of the four quarters of a text; not a number where a quarter has no token.
std::vector<double> quarters(std::span<const double> losses) {
  std::vector<double> out;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::size_t begin = losses.size() * i / 4, end = losses.size() * (i + 1) / 4;
    out.push_back(mean_of(losses.subspan(begin, end - begin)));
  }
  return out;
}

void tell(std::string_view what, const std::vector<double>& losses, double bytes_per_token) {
  std::vector<std::string> parts;
  for (const double loss : quarters(losses))
    parts.push_back(std::isnan(loss) ? "-" : fmt::format("{:.4f}", loss));
  fmt::print("{:<9} {:.4f} nats per token ({:.4f} bits per byte); quarters of the text {}\n", what,
             mean_of(losses), mean_of(losses) / std::numbers::ln2 / bytes_per_token, fmt::join(parts, ", "));
}

nlohmann::ordered_json in_json(const std::vector<double>& losses, double bytes_per_token) {
  return {{"loss", mean_of(losses)},
          {"bits_per_byte", mean_of(losses) / std::numbers::ln2 / bytes_per_token},
          {"loss_by_quarter", quarters(losses)}};
}

std::string text_of(const Options& o) {
  constexpr std::size_t kLeast = 2;  // a byte, and one that is predicted
  const ByteCorpus corpus = ByteCorpus::load(o.data, 0);
  std::string out;
  for (const Split split : {Split::training, Split::validation})
    if (o.all || split == Split::validation) {
      const auto bytes = corpus.bytes(split);
      out.append(bytes.begin(), bytes.end());
    }
  if (out.size() < kLeast)
    throw ConfigError(fmt::format("[data] {}'{}' has {} bytes, but at least {} are needed; give more text{}",
                                  o.all ? "" : "the validation part of ", printable(o.data), out.size(),
                                  kLeast, o.all ? "" : ", or ask for --all of it"));
  if (o.bytes > 0) out.resize(std::min(out.size(), static_cast<std::size_t>(o.bytes)));
  return out;
}

// Is the text what its tokens write? Some tokenizers write a space before it.
bool keeps(const Tokenizer& tokenizer, const std::vector<std::int32_t>& tokens, const std::string& text) {
  std::string written;
  for (const std::int32_t token : tokens) written += tokenizer.bytes(token);
  return written == text || written == " " + text;
}

// What is scored, for people.
std::string text_name(const Options& o, std::size_t bytes) {
  return fmt::format("{}{}: {} bytes", o.all ? "" : "the validation part of ", printable(o.data), bytes);
}

void evaluate(Options& o) {
  o.adaptation.what = adapted_named(o.adapt);
  try {
    o.adaptation.check();
  } catch (const ConfigError& e) {
    throw CLI::ValidationError(e.what());
  }
  if (o.prove && o.adaptation.what == Adapted::nothing)
    throw CLI::ValidationError("--prove", "is about a model that learns: give --adapt as well");
  const Checkpoint model = given_model(o.checkpoint);
  const auto tokenizer = read_tokenizer(o.checkpoint, model.config.vocab_size, o.tokenizer);
  const std::string text = text_of(o);
  const std::vector<std::int32_t> tokens = tokenizer->encode(text);
  // A token that only begins the text is read, not scored.
  const std::size_t of_text = tokens.size() - tokenizer->encode("").size();
  const double bytes_per_token = static_cast<double>(text.size()) / static_cast<double>(of_text);
  const auto start = std::chrono::steady_clock::now();
  const bool learns = o.adaptation.what != Adapted::nothing;
  std::vector<double> frozen, adapted;
  std::int64_t learning = 0, steps = 0;
  {
    ProgressLine progress;
    AdaptationOptions nothing = o.adaptation;
    nothing.what = Adapted::nothing;
    AdaptingScorer as_it_is(model.config, model.params, nothing);
    frozen = score_text(as_it_is, tokens, o.segment,
                        [&](double done) { progress.update("as it is", learns ? done / 4 : done); });
    if (learns) {
      AdaptingScorer scorer(model.config, model.params, o.adaptation);
      if (o.prove) {
        if (tokens.size() < static_cast<std::size_t>(o.segment) + 2)
          throw ConfigError(fmt::format(
              "[evaluate] --prove: {} tokens are one segment of {}, and no step is made before a score; give more text or "
              "a shorter --segment",
              tokens.size(), o.segment));
        const std::span some =
            std::span(tokens).first(std::min(tokens.size(), static_cast<std::size_t>(3 * o.segment + 1)));
        check_no_look_ahead(scorer, some, o.segment);
        progress.print(fmt::format(
            "no score looks ahead: {} tokens, and as many with later ones replaced at nine places",
            some.size()));
      }
      adapted = score_text(scorer, tokens, o.segment,
                           [&](double done) { progress.update("adapting", 0.25 + 0.75 * done); });
      learning = scorer.learning_parameters();
      steps = scorer.steps();
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print("{}, {} tokens in segments of {}, {}\n", text_name(o, text.size()), frozen.size(), o.segment,
             format_seconds(seconds));
  const bool is_kept = keeps(*tokenizer, tokens, text);
  if (!is_kept)
    fmt::print("the tokenizer loses a part of this text: its bits per byte are no length of a code of it\n");
  tell("as it is", frozen, bytes_per_token);
  if (learns) {
    tell(o.adapt, adapted, bytes_per_token);
    fmt::print("{} steps on {} parameters gain {:.4f} nats per token, {:.4f} in the last quarter\n", steps,
               learning, mean_of(frozen) - mean_of(adapted),
               quarters(frozen).back() - quarters(adapted).back());
  }
  if (!o.json) return;
  nlohmann::ordered_json json{{"data", o.data},
                              {"part", o.all ? "all" : "validation"},
                              {"bytes", text.size()},
                              {"tokens", frozen.size()},
                              {"segment", o.segment},
                              {"text_is_kept", is_kept},
                              {"as_it_is", in_json(frozen, bytes_per_token)}};
  if (learns) {
    const double rate = o.adaptation.rate > 0 ? o.adaptation.rate : default_rate(o.adaptation.what);
    json["adapt"] = o.adapt, json["rate"] = rate, json["steps"] = steps,
    json["learning_parameters"] = learning;
    json["adapted"] = in_json(adapted, bytes_per_token);
    if (o.prove) json["no_look_ahead"] = "proved on the first segments";
  }
  json["seconds"] = seconds;
  print_json(json);
}

}  // namespace

int nestgrad::programs::evaluate(int argc, char** argv) {
  CLI::App app{
      "Scores a text with a trained model: nats per token, over the whole text and by quarters. With --adapt the model\n"
      "goes on learning: each segment is scored first, and then makes a step of gradient descent on its own loss.",
      "evaluate"};
  Options o;
  app.add_option("--checkpoint", o.checkpoint, "Folder of a model, or its file of weights")
      ->required()
      ->check(not_empty);
  app.add_option("--tokenizer", o.tokenizer, "tokenizer.model (default: that beside the weights, or bytes)")
      ->check(not_empty);
  app.add_option("--data", o.data, "Text file, or folder of text files (default: the Eigen headers)")
      ->check(not_empty)
      ->capture_default_str();
  app.add_flag("--all", o.all,
               "Score the part that models are trained on too, not only the part that validates");
  app.add_option("--bytes", o.bytes, "Most bytes of it (0: all)")
      ->check(not_negative, "NONNEGATIVE")
      ->capture_default_str();
  app.add_option("--segment", o.segment,
                 "Tokens that are scored before a step; layers begin anew with each segment")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24))
      ->capture_default_str();
  app.add_option("--adapt", o.adapt,
                 "What learns: nothing, sgd (all parameters), norms (of normalisations), lora")
      ->check(CLI::IsMember({"nothing", "sgd", "norms", "lora"}))
      ->capture_default_str();
  CLI::Option* const rate =
      app.add_option("--rate", o.adaptation.rate, "Of its steps (default: that of --adapt)")
          ->check(positive, "POSITIVE");
  CLI::Option* const clip = app.add_option("--clip", o.adaptation.clip, "Largest norm of a step's gradient")
                                ->check(positive, "POSITIVE")
                                ->capture_default_str();
  CLI::Option* const rank =
      app.add_option("--rank", o.adaptation.rank, "lora: of the product beside each matrix")
          ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 16))
          ->capture_default_str();
  CLI::Option* const seed =
      app.add_option("--seed", o.adaptation.seed, "lora: of its first factor")->capture_default_str();
  app.add_flag("--prove", o.prove, "Show first that no score depends on what comes after it");
  app.add_flag("--json", o.json, "Last line of output: the results as one JSON object");
  add_device_option(app);
  return run_program(argc, argv, app, [&] {
    for (const CLI::Option* option : {rate, clip, rank, seed})
      if (option->count() > 0 && o.adapt == "nothing")
        throw CLI::ValidationError(option->get_name(), "is about a model that learns: give --adapt as well");
    for (const CLI::Option* option : {rank, seed})
      if (option->count() > 0 && o.adapt != "lora")
        throw CLI::ValidationError(option->get_name(),
                                   fmt::format("is about --adapt lora, and it is {}", o.adapt));
    ::evaluate(o);
  });
}
