#include "models/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "engine/io/file.h"
#include "engine/io/flax_stream.h"
#include "engine/io/no_pipe.h"
#include "engine/io/safetensors.h"
#include "models/json.h"
#include "models/partial_load.h"
#include "models/published.h"
#include "models/training_checkpoint.h"

namespace nestgrad {

namespace {

namespace fs = std::filesystem;

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kUnreadable[] = {"pytorch_model.bin", "pytorch_model.bin.index.json",
                                       "flax_model.msgpack"};

struct Weights {
  StateDict params;
  std::string config = {};  // that training here wrote beside them
  bool jax = false;
};

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Files of the JAX release in a folder, by name.
std::vector<std::string> streams_in(const fs::path& folder) {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (const std::string name = at->path().filename().string();
        name.starts_with("streaming_params") || name.starts_with("streaming_train_state"))
      out.push_back(name);
  std::ranges::sort(out);
  return out;
}

// The file of weights in a folder.
fs::path weights_in(const fs::path& folder) {
  const char* const own = "checkpoint.safetensors";
  for (const char* name : {"model.safetensors", kIndex}) {
    if (!is_there(folder / name)) continue;
    if (is_there(folder / own))
      throw ConfigError(fmt::format("[checkpoint] {} holds {} and {}; give the path of one of them",
                                    printable(folder.string()), own, name));
    return folder / name;
  }
  if (is_there(folder / own)) return folder / own;
  const std::vector<std::string> streams = streams_in(folder);
  if (streams.size() > 1)
    throw ConfigError(fmt::format("[checkpoint] {} holds {}; give the path of one of them",
                                  printable(folder.string()), listed(streams)));
  if (streams.size() == 1) return folder / streams[0];
  for (const char* name : kUnreadable)
    if (is_there(folder / name))
      throw ConfigError(
          fmt::format("[checkpoint] {} holds {}, which cannot be read; save the model as safetensors "
                      "(model.save_pretrained(folder, safe_serialization=True) in Python)",
                      printable(folder.string()), name));
  throw IoError(fmt::format(
      "[checkpoint] {} holds no model: there is neither config.json with model.safetensors, {} or "
      "checkpoint.safetensors, nor a streaming_params of the JAX release; check the path",
      printable(folder.string()), kIndex));
}

Weights from_safetensors(SafeTensors file) {
  Weights out{std::move(file.tensors)};
  if (const auto own = file.metadata.find("config"); own != file.metadata.end()) out.config = own->second;
  return out;
}

// Which file each tensor is in, by the index of a model in several files.
std::map<std::string, std::vector<std::string>> read_index(const std::string& path) {
  const std::string text = read_file(path);
  const nlohmann::json index = parse_json(text);
  if (!index.is_object())
    throw IoError(fmt::format("[checkpoint] {} {}; copy it again", printable(path), why_no_object(text)));
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object() || map->empty())
    throw IoError(fmt::format("[checkpoint] {}: there is no weight_map from tensors to files; copy it again",
                              printable(path)));
  std::map<std::string, std::vector<std::string>> out;
  for (const auto& [tensor, file] : map->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (!name.ends_with(".safetensors") || name.find('/') != name.npos || name.find('\0') != name.npos)
      throw IoError(
          fmt::format("[checkpoint] {}: tensor '{}' is in {}, which is no safetensors file beside it",
                      printable(path), printable(tensor), shown(file)));
    out[name].push_back(tensor);
  }
  return out;
}

Weights from_shards(const fs::path& index) {
  Weights out;
  for (const auto& [name, tensors] : read_index(index.string())) {
    const std::string path = (index.parent_path() / name).string();
    check_no_pipe(path);
    SafeTensors shard = read_safetensors(path);
    std::vector<std::string> missing;
    for (const std::string& tensor : tensors)
      if (auto node = shard.tensors.extract(tensor)) out.params.insert(std::move(node));
      else missing.push_back(tensor);
    std::vector<std::string> surplus;
    for (const auto& left : shard.tensors) surplus.push_back(left.first);
    if (!missing.empty() || !surplus.empty())
      throw IoError(fmt::format("[checkpoint] {} does not hold what {} says{}{}; copy both again",
                                printable(path), kIndex,
                                missing.empty() ? "" : fmt::format("; it lacks {}", listed(missing)),
                                surplus.empty() ? "" : fmt::format("; it also holds {}", listed(surplus))));
  }
  return out;
}

Weights read_weights(const fs::path& file) {
  const std::string path = file.string();
  if (path.ends_with(".index.json")) return from_shards(file);
  if (path.ends_with(".safetensors")) return from_safetensors(read_safetensors(path));
  const std::string text = read_file(path);
  const auto bytes = std::as_bytes(std::span(text));
  if (text.size() > 8 && text[8] == '{') return from_safetensors(parse_safetensors(bytes, path));
  // A stream begins with an array of two: a name, and what it names.
  if (!text.empty() && static_cast<unsigned char>(text[0]) != 0x92)
    throw IoError(fmt::format(
        "[checkpoint] {} is neither a safetensors file nor a stream of the JAX release (streaming_params); give one, or the "
        "folder of a model",
        printable(path)));
  return {from_jax_names(parse_flax_stream(bytes, path, is_jax_parameter), path), "", true};
}

// The parameters of the model itself, in f32.
StateDict model_params(const StateDict& params, const LanguageModelConfig& config, const std::string& path,
                       std::vector<std::string>& rounded) {
  const std::string embedding = "model.embed_tokens.weight", head = "lm_head.weight";
  StateDict out = parameters_in_f32(params, path, rounded);
  if (!config.tie_word_embeddings) return out;
  if (auto tied = out.extract(head)) {
    tied.key() = embedding;  // which some files leave out instead
    if (const auto at = out.find(embedding); at != out.end() && !at->second.same_bits(tied.mapped()))
      throw ConfigError(
          fmt::format("[checkpoint] {}: '{}' is not '{}', which tie_word_embeddings says; set it "
                      "to false in config.json",
                      printable(path), head, embedding));
    out.insert(std::move(tied));
  }
  return out;
}

}  // namespace

Checkpoint read_checkpoint(const std::string& path) {
  std::error_code error;
  const bool folder = fs::is_directory(path, error);
  const fs::path config = (folder ? fs::path(path) : fs::path(path).parent_path()) / "config.json";
  if (!is_there(path))
    throw IoError(
        fmt::format("{}: there is no such folder or file; give the folder of a model, or its file of weights",
                    printable(path)));
  const fs::path file = folder ? weights_in(path) : fs::path(path);
  if (folder) check_no_pipe(file);
  check_no_pipe(config);
  const Weights weights = read_weights(file);
  Checkpoint out;
  if (!weights.jax || is_there(config)) {
    out.config = published_config(read_file(config.string()), config.string());
  } else {
    out.config = config_from_shapes(weights.params, file.string());
    out.assumed = fmt::format("ttt_base_lr {}, rms_norm_eps {}, rope_theta {}", out.config.ttt_base_lr,
                              out.config.rms_norm_eps, out.config.rope_theta);
  }
  // A checkpoint of ours knows its model. What the two say differently was edited, and the weights are not
  // for it.
  if (!weights.config.empty())
    if (const auto trained = LanguageModelConfig::from_json(weights.config, file.filename().string());
        trained != out.config)
      throw ConfigError(fmt::format(
          "[checkpoint] {} describes another model than that of the run whose weights these are: {}; bring back what was written beside {}",
          printable(config.string()),
          fields_apart(parse_json(out.config.to_json()), parse_json(trained.to_json())),
          printable(file.filename().string())));
  out.params = model_params(weights.params, out.config, path, out.rounded);
  out.config.check_against(parameter_count(out.params), path);
  return out;
}

void check_finite(const StateDict& params, const std::string& path) {
  for (const auto& [name, value] : params) {
    const Array here = in_type(value, DType::f32, name, path);
    if (const std::int64_t at = first_not_finite(here); at >= 0)
      throw ValueError(fmt::format(
          "[checkpoint] {}: '{}' holds {} at its number {} of {}: with it the model computes nothing "
          "that says anything; go back to weights from before",
          printable(path), printable(name), here.at(at), at, here.size()));
  }
}

}  // namespace nestgrad
