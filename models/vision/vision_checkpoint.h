// A model of images with its weights, as a folder: config.json and model.safetensors.
//
//   vision::write_checkpoint("runs/t5", {config, training.parameters()});
//   const vision::VisionCheckpoint model = vision::read_checkpoint("runs/t5");   // inspect --checkpoint runs/t5
//   const vision::DiffusionCheckpoint other = vision::read_checkpoint<vision::DiffusionConfig>("runs/dit");
//
// Weights of a vision transformer are under timm's names, so model.safetensors of a published one needs a config.json alone,
// as this one:
//
//   {"model_type": "vision_transformer", "image_size": [224, 224], "num_channels": 3, "patch_size": 16,
//    "hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "num_labels": 1000, "mlp_ratio": 4.0,
//    "mixer": "softmax", "class_token": true, "position_embedding": true}
//
// A diffusion transformer says "diffusion_transformer", and num_levels (200) in place of the last two. A model of views says
// "view_synthesis", has no num_channels, num_labels and mixer, and besides hidden_ratio (2) and
// "learner": "baseline", a name of models/vision/view_synthesis.h.
#pragma once

#include <optional>
#include <string>

#include "models/traced_model.h"
#include "models/vision/diffusion.h"
#include "models/vision/view_synthesis.h"
#include "models/vision/vision_transformer.h"

namespace nestgrad::vision {

// Config is VisionConfig, DiffusionConfig or ViewSynthesisConfig.
template <class Config>
struct ModelCheckpoint {
  Config config;
  StateDict params;                       // f32
  std::vector<std::string> rounded = {};  // parameters that the file has in f64, with more digits than f32
};
using VisionCheckpoint = ModelCheckpoint<VisionConfig>;
using DiffusionCheckpoint = ModelCheckpoint<DiffusionConfig>;
using ViewSynthesisCheckpoint = ModelCheckpoint<ViewSynthesisConfig>;

// The fields above, those of Hugging Face's ViTConfig where it has them. How parameters start (init_std) and the form of a
// learner are no part of it. ConfigError for a mixer or learner without a name, and for one that differs from that of its name.
std::string to_json(const VisionConfig& config);
std::string to_json(const DiffusionConfig& config);
std::string to_json(const ViewSynthesisConfig& config);
// num_channels (1), mlp_ratio (4), mixer (softmax), class_token (false), position_embedding (true), num_levels, hidden_ratio
// and learner may be left out, and unknown fields are ignored. ConfigError for what is missing, of the wrong type, or makes
// no model; `what` names the source.
template <class Config = VisionConfig>
Config config_from_json(const std::string& text, const std::string& what);

enum class ImageModel : std::uint8_t { vision_transformer, diffusion_transformer, view_synthesis };
// Of the folder of such a model, or of a file in one, by the model_type in its config.json; none for any other.
std::optional<ImageModel> image_model_of(const std::string& path);

// Makes the folder if there is none; each file is there whole or as it was before, and both as before where one cannot be written.
// ConfigError, and nothing is written, if the parameters are not the model's.
void write_checkpoint(const std::string& folder, const VisionCheckpoint& checkpoint);
void write_checkpoint(const std::string& folder, const DiffusionCheckpoint& checkpoint);
void write_checkpoint(const std::string& folder, const ViewSynthesisCheckpoint& checkpoint);
// A folder as above, one with checkpoint.safetensors of a Training in place of model.safetensors, or one of these files of
// weights with config.json beside it; in f32, f16 or bf16. IoError for a file that is missing or damaged, ConfigError for
// weights and a configuration that do not belong together.
template <class Config = VisionConfig>
ModelCheckpoint<Config> read_checkpoint(const std::string& path);

}  // namespace nestgrad::vision
