#include "models/vision/vision_checkpoint.h"

#include <fmt/format.h>

#include <filesystem>
#include <tuple>

#include "engine/io/file.h"
#include "engine/io/no_pipe.h"
#include "engine/io/safetensors.h"
#include "models/config.h"
#include "models/json.h"
#include "models/partial_load.h"
#include "models/training_checkpoint.h"

namespace nestgrad::vision {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr std::int64_t kMostPixels = 1 << 24, kMostBlocks = 1000;
// Of tables that a trace of a model holds: levels of noise, features of all places together; of a factor of a width.
constexpr std::int64_t kMostLevels = 10000, kMostPlaced = 1 << 24, kMostRatio = 1 << 10;

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

void within(const char* field, std::int64_t value, std::int64_t most) {
  check_extent("vision", field, value, most);
}

// Of models that see one image of a class through mixers.
template <class Config>
void write_of_image(OrderedJson& json, const Config& c) {
  json["num_channels"] = c.channels;
  json["num_labels"] = c.classes;
  json["mixer"] = c.mixer.name;
}
template <class Config>
void read_of_image(const Fields& fields, Config& c) {
  c.channels = fields.get("num_channels", std::int64_t{1});
  c.classes = fields.get<std::int64_t>("num_labels");
  c.mixer = mixer_named(fields.get("mixer", std::string("softmax")));
}
template <class Config>
void check_of_image(const Config& c) {
  within("num_channels", c.channels, kMostExtent);
  within("num_labels", c.classes, kMostExtent);
}

// What is said of each kind of model: its name, its own fields beside those of all, and how large these may be before
// anything of that size is made.
template <class Config>
struct Format;

template <>
struct Format<VisionConfig> {
  static constexpr const char* kType = "vision_transformer";
  static constexpr const char* kWhat = "a vision transformer";
  static constexpr ImageModel kModel = ImageModel::vision_transformer;
  static void write(OrderedJson& json, const VisionConfig& c) {
    write_of_image(json, c);
    json["class_token"] = c.class_token;
    json["position_embedding"] = c.position_embedding;
  }
  static void read(const Fields& fields, VisionConfig& c) {
    read_of_image(fields, c);
    c.class_token = fields.get("class_token", false);
    c.position_embedding = fields.get("position_embedding", true);
  }
  static void check_extents(const VisionConfig& c) { check_of_image(c); }
};

template <>
struct Format<DiffusionConfig> {
  static constexpr const char* kType = "diffusion_transformer";
  static constexpr const char* kWhat = "a diffusion transformer";
  static constexpr ImageModel kModel = ImageModel::diffusion_transformer;
  static void write(OrderedJson& json, const DiffusionConfig& c) {
    write_of_image(json, c);
    json["num_levels"] = c.levels;
  }
  static void read(const Fields& fields, DiffusionConfig& c) {
    read_of_image(fields, c);
    c.levels = fields.get("num_levels", c.levels);
  }
  static void check_extents(const DiffusionConfig& c) {
    check_of_image(c);
    within("num_levels", c.levels, kMostLevels);
    if (c.patch > 0)
      within("image_size (tokens times hidden_size)", c.rows() * c.columns() * c.width, kMostPlaced);
  }
};

template <>
struct Format<ViewSynthesisConfig> {
  static constexpr const char* kType = "view_synthesis";
  static constexpr const char* kWhat = "a model of views";
  static constexpr ImageModel kModel = ImageModel::view_synthesis;
  static void write(OrderedJson& json, const ViewSynthesisConfig& c) {
    json["hidden_ratio"] = c.hidden_ratio;
    json["learner"] = name_of(c.learner);
  }
  static void read(const Fields& fields, ViewSynthesisConfig& c) {
    c.hidden_ratio = fields.get("hidden_ratio", c.hidden_ratio);
    c.learner = view_learner_named(fields.get("learner", std::string("baseline")));
  }
  static void check_extents(const ViewSynthesisConfig& c) {
    within("hidden_ratio", c.hidden_ratio, kMostRatio);
  }
};

// Before anything of that size is made.
template <class Config>
void check_extents(const Config& c) {
  within("image_size", c.height, kMostPixels);
  within("image_size", c.image_width, kMostPixels);
  within("image_size (pixels)", c.height * c.image_width, kMostPixels);
  within("patch_size", c.patch, kMostPixels);
  within("hidden_size", c.width, kMostExtent);
  within("num_hidden_layers", c.depth, kMostBlocks);
  within("num_attention_heads", c.heads, kMostExtent);
  Format<Config>::check_extents(c);
}

template <class Config>
void check_belong_together(const ModelCheckpoint<Config>& model, const std::string& what) {
  const Config& c = model.config;
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

// Does a name say all of its mixer or learner?
bool has_a_name(const ViewSynthesisConfig& c) { return !name_of(c.learner).empty(); }
template <class Config>
bool has_a_name(const Config& c) {
  return !c.mixer.name.empty() && mixer_named(c.mixer.name) == c.mixer;
}

template <class Config>
std::string json_of(const Config& c) {
  if (!has_a_name(c))
    throw ConfigError(
        "[vision] this mixer or learner has no name, or a field was changed in one that has, so no file can say which it "
        "is; take one of mixer_named() or view_learner_named() as it is");
  OrderedJson json{{"model_type", Format<Config>::kType},
                   {"image_size", {c.height, c.image_width}},
                   {"patch_size", c.patch},
                   {"hidden_size", c.width},
                   {"num_hidden_layers", c.depth},
                   {"num_attention_heads", c.heads},
                   {"mlp_ratio", c.mlp_ratio}};
  Format<Config>::write(json, c);
  return json.dump(2);
}

template <class Config>
void write(const std::string& folder, const ModelCheckpoint<Config>& checkpoint) {
  const std::string config = json_of(checkpoint.config);
  check_belong_together(checkpoint, "what is to be written");
  SafeTensors file;
  for (const auto& [name, value] : checkpoint.params) file.tensors.emplace(name, value.to(Device::cpu()));
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw IoError(fmt::format("[vision] {}: {}; give another folder", printable(folder), error.message()));
  // Both are on the disk before either takes its name, so what keeps one from being written leaves the two of before.
  AtomicFile settings(folder + "/config.json"), weights(folder + "/model.safetensors");
  weights.write(format_safetensors(file));
  settings.write(config + "\n");
  settings.commit();
  weights.commit();
}

}  // namespace

template <class Config>
Config config_from_json(const std::string& text, const std::string& what) {
  const Json json = parse_json(text);
  if (!json.is_object()) throw ConfigError(fmt::format("[vision] {} {}", what, why_no_object(text)));
  const Fields fields{json, what};
  if (fields.get<std::string>("model_type") != Format<Config>::kType)
    throw ConfigError(fmt::format("[vision] {}: model_type is {}, {} has \"{}\"", what,
                                  shown(fields.at("model_type")), Format<Config>::kWhat,
                                  Format<Config>::kType));
  Config c;
  std::tie(c.height, c.image_width) = fields.size("image_size");
  c.patch = fields.get<std::int64_t>("patch_size");
  c.width = fields.get<std::int64_t>("hidden_size");
  c.depth = fields.get<std::int64_t>("num_hidden_layers");
  c.heads = fields.get<std::int64_t>("num_attention_heads");
  c.mlp_ratio = fields.get("mlp_ratio", c.mlp_ratio);
  Format<Config>::read(fields, c);
  check_extents(c);
  c.check();
  return c;
}

std::optional<ImageModel> image_model_of(const std::string& path) {
  const fs::path config = config_beside(path);
  if (!is_there(config)) return {};
  check_no_pipe(config);
  const Json json = parse_json(read_file(config.string()));
  if (!json.is_object() || !json.contains("model_type")) return {};
  std::optional<ImageModel> out;
  const auto ask = [&]<class Config>(Format<Config> format) {
    if (json["model_type"] == format.kType) out = format.kModel;
  };
  ask(Format<VisionConfig>());
  ask(Format<DiffusionConfig>());
  ask(Format<ViewSynthesisConfig>());
  return out;
}

template <class Config>
ModelCheckpoint<Config> read_checkpoint(const std::string& path) {
  if (!is_there(path))
    throw IoError(fmt::format("[vision] {}: there is no such file or folder; give the folder of a model",
                              printable(path)));
  const std::string config = config_beside(path).string();
  check_no_pipe(config);
  ModelCheckpoint<Config> out{config_from_json<Config>(read_file(config), config), {}, {}};
  std::string weights = path;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    weights = path + "/model.safetensors";
    if (!is_there(weights) && is_there(path + "/checkpoint.safetensors"))
      weights = path + "/checkpoint.safetensors";
    check_no_pipe(weights);
  }
  out.params = parameters_in_f32(read_safetensors(weights).tensors, weights, out.rounded);
  check_belong_together(out, weights);
  return out;
}

#define NESTGRAD_MODEL(CONFIG)                                                                  \
  std::string to_json(const CONFIG& config) { return json_of(config); }                         \
  template CONFIG config_from_json(const std::string&, const std::string&);                     \
  void write_checkpoint(const std::string& folder, const ModelCheckpoint<CONFIG>& checkpoint) { \
    write(folder, checkpoint);                                                                  \
  }                                                                                             \
  template ModelCheckpoint<CONFIG> read_checkpoint(const std::string&);
NESTGRAD_MODEL(VisionConfig)
NESTGRAD_MODEL(DiffusionConfig)
NESTGRAD_MODEL(ViewSynthesisConfig)
#undef NESTGRAD_MODEL

}  // namespace nestgrad::vision
