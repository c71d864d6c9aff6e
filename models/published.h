// What the official releases of the TTT language models (Sun et al. 2024) call things, in the names of this
// project, which are those of the PyTorch release.
//   PyTorch: github.com/test-time-training/ttt-lm-pytorch, ttt.py (TTTConfig, TTTForCausalLM)
//   JAX:     github.com/test-time-training/ttt-lm-jax, ttt/models/{model,ttt_layer}.py
#pragma once

#include <string>

#include "models/config.h"
#include "models/traced_model.h"

namespace nestgrad {

// The model that a config.json describes: one of ours, of the PyTorch release (what it leaves out is TTTConfig's
// default) or of the JAX release (seq_modeling_block, conv_width). Fields that change no number are ignored;
// one that asks for what the model cannot do is a ConfigError that names it. `what` names the source.
LanguageModelConfig published_config(const std::string& text, const std::string& what);

// Parameters of the JAX release, by the joined parts of their names (model/h/0/seq_modeling_block/wq/kernel,
// after params/params/ in a whole training state), under the names and in the layout of the PyTorch release:
// weights of linear maps are [in, out] there and [out, in] here, those of convolutions [kernel, 1, width] and
// [width, 1, kernel]. ConfigError with the names that are none of them.
StateDict from_jax_names(const StateDict& params, const std::string& what);
// Which of the names in a training state are parameters, not the optimiser's.
bool is_jax_parameter(const std::string& name);

// The model that these parameters (PyTorch names) belong to. What shapes do not tell is as in every published
// run: ttt_base_lr 1 of TTT-Linear and 0.1 of TTT-MLP, rms_norm_eps 1e-6, rope_theta 10000.
LanguageModelConfig config_from_shapes(const StateDict& params, const std::string& what);

}  // namespace nestgrad
