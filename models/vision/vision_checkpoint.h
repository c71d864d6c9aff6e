// A vision transformer with its weights, as a folder: config.json and model.safetensors.
//
//   vision::write_checkpoint("runs/t5", {config, training.parameters()});
//   const vision::VisionCheckpoint model = vision::read_checkpoint("runs/t5");   // inspect --checkpoint runs/t5
//
// Weights are under timm's names, so model.safetensors of a published ViT needs a config.json alone, as this one:
//
//   {"model_type": "vision_transformer", "image_size": [224, 224], "num_channels": 3, "patch_size": 16,
//    "hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "num_labels": 1000, "mlp_ratio": 4.0,
//    "mixer": "softmax", "class_token": true, "position_embedding": true}
#pragma once

#include <string>

#include "models/traced_model.h"
#include "models/vision/vision_transformer.h"

namespace nestgrad::vision {

struct VisionCheckpoint {
  VisionConfig config;
  StateDict params;  // f32
};

// The fields above, those of Hugging Face's ViTConfig where it has them. ConfigError for a mixer without a name.
std::string to_json(const VisionConfig& config);
// num_channels (1), mlp_ratio (4), mixer (softmax), class_token (false) and position_embedding (true) may be left out, and
// unknown fields are ignored. ConfigError for what is missing, of the wrong type, or makes no model; `what` names the
// source.
VisionConfig vision_config_from_json(const std::string& text, const std::string& what);

// Is that the folder of a vision transformer, or a file in one? By the model_type in its config.json.
bool is_vision_checkpoint(const std::string& path);

// Makes the folder if there is none; each file is there whole or as it was before. ConfigError, and nothing is written,
// if the parameters are not the model's.
void write_checkpoint(const std::string& folder, const VisionCheckpoint& checkpoint);
// A folder as above, one with checkpoint.safetensors of a Training in place of model.safetensors, or one of these files of
// weights with config.json beside it; in f32, f16 or bf16. IoError for a file that is missing or damaged, ConfigError for
// weights and a configuration that do not belong together.
VisionCheckpoint read_checkpoint(const std::string& path);

}  // namespace nestgrad::vision
