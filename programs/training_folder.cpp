#include "programs/training_folder.h"

#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "engine/io/file.h"
#include "engine/io/no_pipe.h"

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

// Of a folder without a checkpoint. A run whose checkpoint was taken away has a report of its own, and its log beside it.
void check_nothing_of_others(const std::string& folder) {
  const bool has_log = has(folder, "metrics.jsonl");
  std::vector<const char*> of_others = {"summary.jsonl", "model.safetensors", "model.safetensors.index.json"};
  if (!has_log) of_others.push_back("report.html");
  for (const char* name : of_others)
    if (has(folder, name))
      throw ConfigError(fmt::format(
          "{} holds {} of an inspection or a model, and a training run would write its own files in place of "
          "theirs; choose another --out",
          printable(folder), name));
  const std::string config = folder + "/config.json";
  if (!has_log && has(folder, "config.json") && !is_of_a_run(config))
    throw ConfigError(fmt::format(
        "{} is of something else, and a training run would write its own in its place; choose another --out",
        printable(config)));
}

}  // namespace

void make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw IoError(fmt::format("{}: cannot be created ({}); choose another --out", folder, error.message()));
}

void prepare_folder(const std::string& folder, bool resume, const LanguageModelConfig& model) {
  const bool has_checkpoint = has(folder, "checkpoint.safetensors");
  if (has_checkpoint && !resume)
    throw ConfigError(
        fmt::format("{} already holds a training run; go on with --resume, or choose another --out", folder));
  if (!has_checkpoint && resume)
    throw IoError(fmt::format(
        "{}: there is no checkpoint.safetensors to resume from; leave --resume out to start", folder));
  if (!resume) check_nothing_of_others(folder);
  write_file_atomically(folder + "/config.json", config_text(model));
}

}  // namespace nestgrad
