#include "models/vision/vision_checkpoint.h"

#include <fmt/format.h>

#include <filesystem>
#include <tuple>

#include "engine/io/file.h"
#include "engine/io/safetensors.h"
#include "models/config.h"
#include "models/json.h"
#include "models/training_checkpoint.h"

namespace nestgrad::vision {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kModelType = "vision_transformer";
constexpr std::int64_t kMostPixels = 1 << 24, kMostBlocks = 1000;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

fs::path config_beside(const std::string& path) {
  std::error_code error;
  return (fs::is_directory(path, error) ? fs::path(path) : fs::path(path).parent_path()) / "config.json";
}

// Fields of one JSON object.
struct Fields {
  const Json& json;
  const std::string& what;

  [[noreturn]] void refuse(const char* name, const Json& value) const {
    throw ConfigError(fmt::format("[vision] {}: field '{}' is {}", what, name, shown(value)));
  }
  const Json& at(const char* name) const {
    const auto field = json.find(name);
    if (field == json.end()) throw ConfigError(fmt::format("[vision] {}: field '{}' is missing", what, name));
    return *field;
  }
  template <class T>
  T get(const char* name) const {
    const Json& field = at(name);
    if (!fits(field, T())) refuse(name, field);
    return field.get<T>();
  }
  template <class T>
  T get(const char* name, T otherwise) const {
    return json.contains(name) ? get<T>(name) : otherwise;
  }
  // A number, or [height, width].
  std::pair<std::int64_t, std::int64_t> size(const char* name) const {
    const Json& field = at(name);
    if (!field.is_array()) {
      const auto edge = get<std::int64_t>(name);
      return {edge, edge};
    }
    if (field.size() != 2 || !fits(field[0], std::int64_t()) || !fits(field[1], std::int64_t()))
      refuse(name, field);
    return {field[0].get<std::int64_t>(), field[1].get<std::int64_t>()};
  }
};

// Before anything of that size is made.
void check_extents(const VisionConfig& c) {
  const auto within = [](const char* field, std::int64_t value, std::int64_t most) {
    check_extent("vision", field, value, most);
  };
  within("image_size", c.height, kMostPixels);
  within("image_size", c.image_width, kMostPixels);
  within("image_size (pixels)", c.height * c.image_width, kMostPixels);
  within("num_channels", c.channels, kMostExtent);
  within("patch_size", c.patch, kMostPixels);
  within("hidden_size", c.width, kMostExtent);
  within("num_hidden_layers", c.depth, kMostBlocks);
  within("num_attention_heads", c.heads, kMostExtent);
  within("num_labels", c.classes, kMostExtent);
}

void check_belong_together(const VisionCheckpoint& model, const std::string& what) {
  const VisionConfig& c = model.config;
  check_extents(c);
  c.check();
  const double width = static_cast<double>(c.width),
               least = static_cast<double>(c.depth) * width * width * (4 + 2 * c.mlp_ratio);
  if (const auto held = static_cast<double>(parameter_count(model.params)); !(least <= 1.001 * held))
    throw ConfigError(fmt::format(
        "[vision] {} holds {:.0f} parameters, its configuration (hidden_size {}, num_hidden_layers {}) asks for at "
        "least {:.0f}; they do not belong together",
        what, held, c.width, c.depth, least));
  check_fits(parameters_of(c), model.params, what);
}

}  // namespace

std::string to_json(const VisionConfig& c) {
  if (c.mixer.name.empty())
    throw ConfigError(
        "[vision] this mixer has no name, so no file can say which it is; take one of mixer_named()");
  return nlohmann::ordered_json{
      {"model_type", kModelType},       {"image_size", {c.height, c.image_width}},
      {"num_channels", c.channels},     {"patch_size", c.patch},
      {"hidden_size", c.width},         {"num_hidden_layers", c.depth},
      {"num_attention_heads", c.heads}, {"num_labels", c.classes},
      {"mlp_ratio", c.mlp_ratio},       {"mixer", c.mixer.name},
      {"class_token", c.class_token},   {"position_embedding", c.position_embedding}}
      .dump(2);
}

VisionConfig vision_config_from_json(const std::string& text, const std::string& what) {
  const Json json = parse_json(text);
  if (!json.is_object()) throw ConfigError(fmt::format("[vision] {} is not a JSON object", what));
  const Fields fields{json, what};
  if (fields.get<std::string>("model_type") != kModelType)
    throw ConfigError(fmt::format("[vision] {}: model_type is {}, a vision transformer has \"{}\"", what,
                                  shown(fields.at("model_type")), kModelType));
  VisionConfig c;
  std::tie(c.height, c.image_width) = fields.size("image_size");
  c.channels = fields.get("num_channels", std::int64_t{1});
  c.patch = fields.get<std::int64_t>("patch_size");
  c.width = fields.get<std::int64_t>("hidden_size");
  c.depth = fields.get<std::int64_t>("num_hidden_layers");
  c.heads = fields.get<std::int64_t>("num_attention_heads");
  c.classes = fields.get<std::int64_t>("num_labels");
  c.mlp_ratio = fields.get("mlp_ratio", 4.0);
  c.mixer = mixer_named(fields.get("mixer", std::string("softmax")));
  c.class_token = fields.get("class_token", false);
  c.position_embedding = fields.get("position_embedding", true);
  check_extents(c);
  c.check();
  return c;
}

bool is_vision_checkpoint(const std::string& path) {
  const fs::path config = config_beside(path);
  if (!is_there(config)) return false;
  const Json json = parse_json(read_file(config.string()));
  return json.is_object() && json.contains("model_type") && json["model_type"] == kModelType;
}

void write_checkpoint(const std::string& folder, const VisionCheckpoint& checkpoint) {
  const std::string config = to_json(checkpoint.config);
  check_belong_together(checkpoint, "what is to be written");
  SafeTensors file;
  for (const auto& [name, value] : checkpoint.params) file.tensors.emplace(name, value.to(Device::cpu()));
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw IoError(fmt::format("[vision] {}: {}; give another folder", printable(folder), error.message()));
  write_safetensors(folder + "/model.safetensors", file);
  write_file_atomically(folder + "/config.json", config + "\n");
}

VisionCheckpoint read_checkpoint(const std::string& path) {
  const std::string config = config_beside(path).string();
  VisionCheckpoint out{vision_config_from_json(read_file(config), config), {}};
  std::string weights = path;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    weights = path + "/model.safetensors";
    if (!is_there(weights) && is_there(path + "/checkpoint.safetensors"))
      weights = path + "/checkpoint.safetensors";
  }
  for (auto& [name, value] : read_safetensors(weights).tensors)
    if (is_parameter(name))
      out.params.emplace(name, value.dtype() == DType::f32 ? value : value.cast(DType::f32));
  check_belong_together(out, weights);
  return out;
}

}  // namespace nestgrad::vision
