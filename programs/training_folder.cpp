#include "programs/training_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "engine/io/file.h"
#include "engine/io/no_pipe.h"
#include "models/metrics.h"
#include "programs/out_folder.h"

namespace nestgrad {

namespace {

bool has(const std::string& folder, const char* name) { return std::filesystem::exists(folder + "/" + name); }

std::string config_text(const LanguageModelConfig& model) { return model.to_json() + "\n"; }

// Is config.json what a run writes?
bool is_of_a_run(const std::string& config_path) {
  try {
    const std::string text = read_found_file(config_path);
    return config_text(LanguageModelConfig::from_json(text, config_path)) == text;
  } catch (const Error&) {
    return false;
  }
}

// Is metrics.jsonl what a run writes up to its first checkpoint, and no later line? Of a run with more the checkpoint was lost.
bool is_of_a_beginning(const std::string& metrics_path, std::int64_t first_save) {
  try {
    return std::ssize(parse_metrics(read_found_file(metrics_path), metrics_path)) <= first_save;
  } catch (const Error&) {
    return false;
  }
}

// What a run writes beside its checkpoint, and what others write that would be taken for its own.
bool concerns_a_run(const std::string& name) {
  constexpr std::array<std::string_view, 8> kNames = {
      "config.json",           "metrics.jsonl", "report.html",       "loss_by_position.svg",
      "nonfinite.safetensors", "summary.jsonl", "model.safetensors", "model.safetensors.index.json"};
  return std::ranges::find(kNames, name) != kNames.end() ||
         (name.starts_with("inner_loss.") && name.ends_with(".svg"));
}

FolderRule beginning_rule(const std::string& folder, std::int64_t first_save) {
  return {.kind = "a training run that begins",
          .concerns = concerns_a_run,
          .may_replace = [=](const std::string& name) {
            const std::string path = folder + "/" + name;
            return (name == "config.json" && is_of_a_run(path)) ||
                   (name == "metrics.jsonl" && is_of_a_beginning(path, first_save));
          }};
}

}  // namespace

void prepare_folder(const std::string& folder, bool resume, const LanguageModelConfig& model,
                    std::int64_t first_save) {
  const bool has_checkpoint = has(folder, "checkpoint.safetensors");
  if (has_checkpoint && !resume)
    throw ConfigError(fmt::format(
        "{} already holds a training run; go on with --resume, or choose another --out", printable(folder)));
  if (!has_checkpoint && resume)
    throw IoError(
        fmt::format("{}: there is no checkpoint.safetensors to resume from; leave --resume out to start",
                    printable(folder)));
  if (!resume) check_replaceable(folder, beginning_rule(folder, first_save));
  check_writable(folder, {"checkpoint.safetensors", "metrics.jsonl", "report.html", "loss_by_position.svg"});
  write_file_atomically(folder + "/config.json", config_text(model));
}

}  // namespace nestgrad
