// A trained model as its authors ship it.
#pragma once

#include <string>

#include "models/config.h"
#include "models/traced_model.h"

namespace nestgrad {

// What is needed to run a model.
struct Checkpoint {
  LanguageModelConfig config;
  StateDict params;          // f32, under the names of the published state dict
  std::string assumed = {};  // what the files do not tell and every published run has; empty: nothing
  std::vector<std::string> rounded = {};  // parameters that the file has in f64, with more digits than f32
};

// Reads a folder, which is recognised by what it holds:
//   config.json and model.safetensors, or model-0000i-of-0000N.safetensors with model.safetensors.index.json:
//     the PyTorch release (TTTForCausalLM.save_pretrained), in f32, f16 or bf16
//   config.json and checkpoint.safetensors: written by training here
//   streaming_params.. or streaming_train_state..: the JAX release (ttt-lm-jax); a config.json beside it, in
//     the fields of either release, is optional
// or one of these files of weights, with config.json in its folder. IoError for a file that is missing or
// damaged, and for a pipe in a folder; ConfigError for weights and a configuration that do not belong together, or that no model
// here fits.
Checkpoint read_checkpoint(const std::string& path);

// ValueError that names the first parameter with a NaN or an infinity, and where the weights were read.
void check_finite(const StateDict& params, const std::string& path);

}  // namespace nestgrad
