// The promise: a vision transformer that was written is read again with the same bits, a published one is read with a
// config.json beside it, and files that make no model are refused in a line.
#include "models/vision/vision_checkpoint.h"

#include <filesystem>

#include "engine/io/file.h"
#include "engine/io/safetensors.h"
#include "models/training.h"
#include "tests/models/vision_testing.h"
#include "tests/temporary_folder.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

vision::VisionConfig small(const std::string& mixer) {
  return {.height = 10,
          .image_width = 12,
          .channels = 3,
          .patch = 2,
          .width = 8,
          .depth = 2,
          .heads = 2,
          .classes = 5,
          .mlp_ratio = 2.5,
          .mixer = vision::mixer_named(mixer)};
}

StateDict start_of(const vision::VisionConfig& c) { return random_parameters(parameters_of(c), DType::f32); }

void check_same_params(const StateDict& a, const StateDict& b) {
  REQUIRE(a.size() == b.size());
  for (const auto& [name, value] : a) CHECK(value.same_bits(b.at(name)));
}

}  // namespace

TEST_CASE("a vision transformer is written and read with the same bits, whatever its mixer") {
  for (const std::string& mixer : vision::mixer_names()) {
    CAPTURE(mixer);
    const TemporaryFolder folder;
    const vision::VisionConfig config = small(mixer);
    vision::VisionCheckpoint written{config, start_of(config)};
    vision::write_checkpoint(folder / "new/model", written);
    CHECK(vision::image_model_of(folder / "new/model") == vision::ImageModel::vision_transformer);
    CHECK(vision::image_model_of(folder / "new/model/model.safetensors") ==
          vision::ImageModel::vision_transformer);
    const vision::VisionCheckpoint read = vision::read_checkpoint(folder / "new/model");
    CHECK(vision::to_json(read.config) == vision::to_json(config));
    CHECK(read.config.mixer.layer.index() == config.mixer.layer.index());
    CHECK(read.config.mlp_ratio == 2.5);
    check_same_params(written.params, read.params);
    check_same_params(written.params, vision::read_checkpoint(folder / "new/model/model.safetensors").params);
  }
}

namespace {

vision::DiffusionConfig small_diffusion() {
  return {.height = 6,
          .image_width = 8,
          .channels = 2,
          .patch = 2,
          .width = 8,
          .depth = 1,
          .heads = 2,
          .classes = 3,
          .levels = 50,
          .mixer = vision::mixer_named("t5-diffusion-no-nat")};
}
vision::ViewSynthesisConfig small_views(const std::string& learner) {
  return {.height = 4,
          .image_width = 6,
          .patch = 2,
          .width = 8,
          .depth = 1,
          .heads = 2,
          .hidden_ratio = 3,
          .mlp_ratio = 1.5,
          .learner = vision::view_learner_named(learner)};
}

template <class Config>
void check_round_trip(const Config& config, vision::ImageModel kind) {
  const TemporaryFolder folder;
  const vision::ModelCheckpoint<Config> written{config, random_parameters(parameters_of(config), DType::f32)};
  vision::write_checkpoint(folder / "model", written);
  CHECK(vision::image_model_of(folder / "model") == kind);
  const auto read = vision::read_checkpoint<Config>(folder / "model");
  CHECK(to_json(read.config) == to_json(config));
  check_same_params(written.params, read.params);
}

}  // namespace

TEST_CASE("models of diffusion and of views are written and read with the same bits") {
  check_round_trip(small_diffusion(), vision::ImageModel::diffusion_transformer);
  for (const std::string& learner : vision::view_learner_names()) {
    CAPTURE(learner);
    check_round_trip(small_views(learner), vision::ImageModel::view_synthesis);
    CHECK(
        vision::config_from_json<vision::ViewSynthesisConfig>(to_json(small_views(learner)), "it").learner ==
        vision::view_learner_named(learner));
  }
  vision::ViewSynthesisConfig own = small_views("baseline");
  own.learner.steps = 2;
  CHECK(contains(message_of<ConfigError>([&] { to_json(own); }), "has no name"));
}

TEST_CASE("fields that would make a model of diffusion or of views too large are refused before it is made") {
  const auto refused = [](auto config, const std::string& from, const std::string& to) {
    std::string text = to_json(config);
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    return message_of<ConfigError>([&] { vision::config_from_json<decltype(config)>(text, "config.json"); });
  };
  CHECK(contains(refused(small_diffusion(), "\"num_levels\": 50", "\"num_levels\": 1000000000"),
                 "must be at most 10000"));
  CHECK(contains(refused(small_diffusion(), "\"hidden_size\": 8", "\"hidden_size\": 4194304"),
                 "image_size (tokens times hidden_size)"));
  CHECK(contains(refused(small_views("v1"), "\"hidden_ratio\": 3", "\"hidden_ratio\": 1000000000"),
                 "must be at most 1024"));
  CHECK(contains(refused(small_views("v1"), "\"v1\"", "\"v9\""), "there is no learner 'v9'"));
  CHECK(contains(refused(small_views("v1"), "\"view_synthesis\"", "\"vision_transformer\""),
                 "a model of views has \"view_synthesis\""));
}

TEST_CASE("a folder that training saved is read without AdamW's moments") {
  const TemporaryFolder folder;
  const vision::VisionConfig config = small("t5-swiglu");
  Training training({.seed = 0});
  training.add({{DType::f32, {2, 10, 12, 3}}, {DType::i32, {2}}}, [&](ParamTable& table, const Tensors& in) {
    return Training::Objective{mean(cross_entropy(class_logits(in[0], Params(table), config), in[1]))};
  });
  training.step(0, {random({DType::f32, {2, 10, 12, 3}}, 1), Array::of({1, 4}, {2}, DType::i32)}, 1e-2);
  training.save(folder / "checkpoint.safetensors", {});
  write_file_atomically(folder / "config.json", vision::to_json(config));
  check_same_params(vision::read_checkpoint(folder.path).params, training.parameters());
}

TEST_CASE("weights in half precision are read, and fields with a usual value may be left out") {
  const TemporaryFolder folder;
  const vision::VisionConfig config{.height = 4,
                                    .image_width = 4,
                                    .channels = 1,
                                    .patch = 2,
                                    .width = 8,
                                    .depth = 1,
                                    .heads = 2,
                                    .classes = 3,
                                    .mixer = vision::mixer_named("softmax")};
  SafeTensors file;
  for (const auto& [name, value] : start_of(config)) file.tensors.emplace(name, value);
  write_safetensors(folder / "model.safetensors", file);
  write_file_atomically(
      folder / "config.json",
      R"({"model_type": "vision_transformer", "image_size": 4, "patch_size": 2, "hidden_size": 8,
  "num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": 3, "architectures": ["ViT"]})");
  const vision::VisionCheckpoint read = vision::read_checkpoint(folder.path);
  CHECK(vision::to_json(read.config) == vision::to_json(config));
}

TEST_CASE("files that make no vision transformer are refused, and say why") {
  const TemporaryFolder folder;
  const vision::VisionConfig config = small("t5-swiglu");
  const std::string good = vision::to_json(config);
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    return message_of<ConfigError>([&] { vision::config_from_json(text, "config.json"); });
  };
  CHECK(contains(refused("\"patch_size\": 2", "\"patch_size\": \"two\""),
                 "config.json: field 'patch_size' is \"two\""));
  CHECK(contains(refused("\"hidden_size\": 8,", ""), "field 'hidden_size' is missing"));
  CHECK(contains(refused("\"t5-swiglu\"", "\"t6\""), "there is no mixer 't6'; there are softmax"));
  CHECK(contains(refused("\"vision_transformer\"", "\"ttt\""), "model_type is \"ttt\""));
  CHECK(contains(refused("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1000000000"),
                 "must be at most 1000"));
  CHECK(contains(refused("\"patch_size\": 2", "\"patch_size\": 4"), "patch"));
  CHECK(contains(refused("\"num_attention_heads\": 2", "\"num_attention_heads\": 3"), "heads"));
  CHECK(contains(refused("\"mlp_ratio\": 2.5", "\"mlp_ratio\": -1"), "mlp_ratio"));
  CHECK(contains(message_of<ConfigError>([&] { vision::config_from_json("[1, 2]", "config.json"); }),
                 "not a JSON object"));

  // What a name does not say of a mixer would be lost.
  for (const std::string mixer : {"vittt", "t5-swiglu", "linear", "softmax"}) {
    vision::VisionConfig changed = small(mixer);
    if (mixer == "vittt") std::get<ttt::Vittt>(changed.mixer.layer).rate = 3;
    else if (mixer == "t5-swiglu") std::get<ttt::T5Attention>(changed.mixer.layer).rate = 3;
    else if (mixer == "linear")
      std::get<vision::LinearMixer>(changed.mixer.layer).feature = vision::FeatureMap::identity;
    else changed.mixer.position_convolution = true;
    CHECK(contains(message_of<ConfigError>([&] {
                     vision::write_checkpoint(folder / "changed", {changed, start_of(changed)});
                   }),
                   "or a field was changed in one that has"));
  }
  CHECK(contains(message_of<IoError>([&] { vision::read_checkpoint("nosuch"); }),
                 "nosuch: there is no such file or folder"));

  // A mixer that no name stands for; weights of another model: nothing is written.
  vision::VisionConfig own = config;
  own.mixer.name.clear();
  CHECK(contains(message_of<ConfigError>([&] {
                   vision::write_checkpoint(folder / "own", {own, start_of(config)});
                 }),
                 "has no name"));
  CHECK(contains(message_of<ConfigError>([&] {
                   vision::write_checkpoint(folder / "own", {small("softmax"), start_of(config)});
                 }),
                 "blocks.0.attn.w1"));
  CHECK_FALSE(std::filesystem::exists(folder / "own"));

  // A configuration of far more than the weights is refused before such a model is made.
  vision::write_checkpoint(folder / "model", {config, start_of(config)});
  std::string large = good;
  large.replace(large.find("\"hidden_size\": 8"), 16, "\"hidden_size\": 4194304");
  write_file_atomically(folder / "model/config.json", large);
  CHECK(contains(message_of<ConfigError>([&] { vision::read_checkpoint(folder / "model"); }),
                 "do not belong together"));
  CHECK(contains(message_of<IoError>([&] { vision::read_checkpoint(folder / "nothing"); }),
                 "there is no such"));
  CHECK_FALSE(vision::image_model_of(folder / "nothing"));
}
