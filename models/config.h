// The configuration of the language model, under the published field names (TTT-LM, Sun et al. 2024).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nestgrad::ttt {
struct Policy;
struct System;
}

namespace nestgrad {

// The most that a width or a vocabulary may be.
inline constexpr std::int64_t kMostExtent = std::int64_t{1} << 24;
inline constexpr std::int64_t kAsPublished = -1;
// What check_size() looks at, under the published field names.
struct ModelSize {
  std::int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads;
};
// ConfigError, naming field and number, unless each is positive, at most 1,000 layers and at most 10^10 parameters.
// `what` is the name of what is checked.
void check_size(std::string_view what, const ModelSize& size);
void check_extent(std::string_view what, const char* field, std::int64_t value, std::int64_t most);
// The hidden width of its SwiGLU as published models have it: 8/3 of the model's, a multiple of 32.
constexpr std::int64_t published_mlp_width(std::int64_t width) { return (width * 8 / 3 + 31) / 32 * 32; }
// Of its embedding, projections and MLPs; a model has more.
double least_parameters(const ModelSize& size);

struct LanguageModelConfig {
  std::int64_t vocab_size = 256;
  std::int64_t hidden_size = 128;
  std::int64_t intermediate_size = 352;
  std::int64_t num_hidden_layers = 2;
  std::int64_t num_attention_heads = 2;
  // linear, mlp (TTT-Linear, TTT-MLP), or the name of another causal system (ttt/system.h); attention: the
  // softmax baseline, which is also the Nadaraya-Watson learner; ttt-e2e: the whole model is the learner, of
  // chunks of mini_batch_size tokens, with attention_window (not positive: 64) tokens of attention.
  std::string ttt_layer_type = "linear";
  double ttt_base_lr = 1.0;
  // Tokens of a branch of sliding-window attention beside the learner; 0: none. kAsPublished: as its paper has it,
  // for LaCT, its ladder and others that have attention beside them (System::attention_beside) mini_batch_size tokens,
  // for the rest none (window_of).
  std::int64_t attention_window = kAsPublished;
  std::int64_t mini_batch_size = 16;
  // ttt-e2e: the ramp of its inner rate over training steps (models/end_to_end.h); 0 steps: there is none.
  double ilr_init = 0;
  std::int64_t ilr_warmup_steps = 0;
  // Mamba-like backbone: gate, shared q/k projection with convolutions, residual convolution.
  bool use_gate = false;
  bool share_qk = false;
  bool pre_conv = false;
  std::int64_t conv_kernel = 4;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool tie_word_embeddings = true;
  bool operator==(const LanguageModelConfig&) const = default;

  // ConfigError, saying which field does not make sense and why.
  void check() const;
  // ConfigError if so many parameters are too few for it: to be asked of a file before its model is traced.
  void check_against(std::int64_t parameters, const std::string& file) const;
  std::string to_json() const;
  // Unknown fields are ignored; wrong types and values are ConfigErrors. `what` names the source in errors.
  static LanguageModelConfig from_json(const std::string& text, const std::string& what);
};

// The whole model as a learner (models/end_to_end.h): no layer type, but named in the same place.
inline constexpr const char* kEndToEnd = "ttt-e2e";

// The learner that a configuration's ttt_layer_type names; ConfigError if there is none.
const ttt::System& learner_system(const std::string& ttt_layer_type);
// How it learns in a layer of this model; ConfigError where the layer is no learner.
ttt::Policy layer_policy(const LanguageModelConfig& config);
// Tokens of attention beside that learner; 0: none.
std::int64_t window_of(const LanguageModelConfig& config, const ttt::System& system);
// What `train_lm --learner` may be: every causal system, attention (nadaraya-watson is another name of it), and ttt-e2e.
std::vector<std::string> layer_names();
// Its ttt_layer_type, and back.
std::string layer_type(const std::string& learner);
std::string learner_name(const std::string& ttt_layer_type);

}  // namespace nestgrad
