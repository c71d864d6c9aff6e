// The configuration of the language model, under the published field names (TTT-LM, Sun et al. 2024).
#pragma once

#include <cstdint>
#include <string>

namespace nestgrad {

struct LanguageModelConfig {
  std::int64_t vocab_size = 256;
  std::int64_t hidden_size = 128;
  std::int64_t intermediate_size = 352;
  std::int64_t num_hidden_layers = 2;
  std::int64_t num_attention_heads = 2;
  std::string ttt_layer_type = "linear";  // linear, mlp; attention: the softmax baseline
  double ttt_base_lr = 1.0;
  std::int64_t mini_batch_size = 16;
  bool use_gate =
      false;  // Mamba-like backbone: gate, shared q/k projection with convolutions, residual convolution
  bool share_qk = false;
  bool pre_conv = false;
  std::int64_t conv_kernel = 4;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool tie_word_embeddings = true;
  bool operator==(const LanguageModelConfig&) const = default;

  // ConfigError, saying which field does not make sense and why.
  void check() const;
  std::string to_json() const;
  // Unknown fields are ignored; wrong types and values are ConfigErrors. `what` names the source in errors.
  static LanguageModelConfig from_json(const std::string& text, const std::string& what);
};

}  // namespace nestgrad
