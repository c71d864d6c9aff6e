#include "programs/out_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "engine/io/file.h"
#include "engine/io/no_pipe.h"
#include "look/inspection.h"
#include "models/vision/vision_checkpoint.h"

namespace nestgrad {

namespace {

namespace fs = std::filesystem;

std::function<bool(const std::string&)> one_of(std::vector<std::string> names) {
  return [names = std::move(names)](const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
}

// The names in a folder, in order; of a link that leads nowhere there is nothing to lose.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (std::error_code none; fs::exists(at->path(), none)) out.push_back(at->path().filename().string());
  std::ranges::sort(out);
  return out;
}

// Is this the config.json that vision::write_checkpoint writes?
bool is_of_image_model(const std::string& folder) {
  const std::string path = folder + "/config.json";
  const auto is_of = [&]<class Config>(const std::string& text) {
    return vision::to_json(vision::config_from_json<Config>(text, path)) + "\n" == text;
  };
  try {
    const std::string text = read_found_file(path);
    const auto kind = vision::image_model_of(folder);
    if (!kind) return false;
    switch (*kind) {
      case vision::ImageModel::vision_transformer:
        return is_of.operator()<vision::VisionConfig>(text);
      case vision::ImageModel::diffusion_transformer:
        return is_of.operator()<vision::DiffusionConfig>(text);
      case vision::ImageModel::view_synthesis:
        return is_of.operator()<vision::ViewSynthesisConfig>(text);
    }
  } catch (const Error&) {
  }
  return false;
}

}  // namespace

void make_folder(const std::string& folder, std::string_view option) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw IoError(fmt::format("{}: cannot be created ({}); choose another {}", printable(folder),
                              error.message(), option));
}

void check_replaceable(const std::string& folder, const FolderRule& rule) {
  for (const std::string& name : names_in(folder))
    if (rule.concerns(name) && !rule.may_replace(name))
      throw ConfigError(fmt::format(
          "{} holds {}, and {} would write its own files in place of it or beside it; choose another "
          "{}, or move it away",
          printable(folder), name, rule.kind, rule.option));
}

FolderRule inspection_rule(const std::string& folder) {
  const auto of_page =
      one_of({"report.html", "graph.dot", "graph.txt", "trace.json", "summary.jsonl", "views"});
  const auto of_runs = one_of(
      {"checkpoint.safetensors", "config.json", "metrics.jsonl", "model.safetensors", "results.jsonl"});
  return {.kind = "an inspection",
          .concerns = [=](const std::string& name) { return of_page(name) || of_runs(name); },
          .may_replace =
              [=](const std::string& name) {
                std::error_code error;
                if (name == "views" && fs::is_empty(folder + "/views", error)) return true;
                return of_page(name) && inspected_files(folder).has_value();
              }};
}

FolderRule image_model_rule(const std::string& folder, std::string_view option) {
  const auto of_model = one_of({"config.json", "model.safetensors"});
  const auto of_others = one_of({"checkpoint.safetensors", "model.safetensors.index.json"});
  return {.kind = "a model of images",
          .concerns = [=](const std::string& name) { return of_model(name) || of_others(name); },
          .may_replace = [=](const std::string& name) { return of_model(name) && is_of_image_model(folder); },
          .option = option};
}

void check_writable(const std::string& folder, const std::vector<std::string>& names) {
  for (const std::string& name : names) const AtomicFile tried((fs::path(folder) / name).string());
}

}  // namespace nestgrad
