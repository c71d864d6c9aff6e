#include "models/config.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/error.h"
#include "ttt/system.h"

namespace nestgrad {

namespace {

// Visits every field by its published name.
template <class Config, class Fn>
void for_each_field(Config& c, Fn fn) {
  fn("vocab_size", c.vocab_size);
  fn("hidden_size", c.hidden_size);
  fn("intermediate_size", c.intermediate_size);
  fn("num_hidden_layers", c.num_hidden_layers);
  fn("num_attention_heads", c.num_attention_heads);
  fn("ttt_layer_type", c.ttt_layer_type);
  fn("ttt_base_lr", c.ttt_base_lr);
  fn("attention_window", c.attention_window);
  fn("mini_batch_size", c.mini_batch_size);
  fn("use_gate", c.use_gate);
  fn("share_qk", c.share_qk);
  fn("pre_conv", c.pre_conv);
  fn("conv_kernel", c.conv_kernel);
  fn("rms_norm_eps", c.rms_norm_eps);
  fn("rope_theta", c.rope_theta);
  fn("tie_word_embeddings", c.tie_word_embeddings);
}

bool is_causal(const ttt::System& system) { return system.policy({1, 2, 16}).causal(); }

// Published names of the first two.
constexpr std::pair<std::string_view, std::string_view> kPublished[] = {{"linear", "ttt-linear"},
                                                                        {"mlp", "ttt-mlp"}};

// Is this JSON value of the field's type? A fraction is no integer.
bool fits(const nlohmann::json& json, std::int64_t) { return json.is_number_integer(); }
bool fits(const nlohmann::json& json, double) { return json.is_number(); }
bool fits(const nlohmann::json& json, bool) { return json.is_boolean(); }
bool fits(const nlohmann::json& json, const std::string&) { return json.is_string(); }

}  // namespace

const ttt::System& learner_system(const std::string& ttt_layer_type) {
  for (const auto& [published, name] : kPublished)
    if (ttt_layer_type == published) return ttt::system_named(name);
  return ttt::system_named(ttt_layer_type);
}

std::vector<std::string> layer_names() {
  std::vector<std::string> out;
  for (const ttt::System& s : ttt::systems())
    if (is_causal(s)) out.push_back(s.name);
  out.insert(out.end(), {"attention", "nadaraya-watson", kEndToEnd});
  return out;
}

std::string layer_type(const std::string& learner) {
  if (learner == "nadaraya-watson") return "attention";  // the same estimator (Sun et al. 2024, theorem 2)
  for (const auto& [published, name] : kPublished)
    if (learner == name) return std::string(published);
  return learner;
}

void LanguageModelConfig::check() const {
  const auto positive = [](const char* field, std::int64_t value) {
    if (value < 1) throw ConfigError(fmt::format("[config] {} must be at least 1, it is {}", field, value));
  };
  positive("vocab_size", vocab_size);
  positive("hidden_size", hidden_size);
  positive("intermediate_size", intermediate_size);
  positive("num_hidden_layers", num_hidden_layers);
  positive("num_attention_heads", num_attention_heads);
  positive("mini_batch_size", mini_batch_size);
  positive("conv_kernel", conv_kernel);
  if (hidden_size % num_attention_heads)
    throw ConfigError(fmt::format("[config] hidden_size {} is not a multiple of num_attention_heads {}",
                                  hidden_size, num_attention_heads));
  if (hidden_size / num_attention_heads % 2)
    throw ConfigError(fmt::format(
        "[config] hidden_size / num_attention_heads is {}; rotary embeddings need an even head dimension",
        hidden_size / num_attention_heads));
  if (ttt_layer_type != "attention" && ttt_layer_type != kEndToEnd) {
    const ttt::System& system = learner_system(ttt_layer_type);
    if (!is_causal(system))
      throw ConfigError(
          fmt::format("[config] ttt_layer_type '{}' is not causal; a language model needs one of {}",
                      ttt_layer_type, fmt::join(layer_names(), ", ")));
  }
  if (attention_window < 0)
    throw ConfigError(
        fmt::format("[config] attention_window must be 0 (none) or positive, it is {}", attention_window));
  const auto real = [](const char* field, double value, bool fine, const char* wanted) {
    if (!fine || !std::isfinite(value))
      throw ConfigError(fmt::format("[config] {} must be {}, it is {}", field, wanted, value));
  };
  real("rms_norm_eps", rms_norm_eps, rms_norm_eps > 0, "positive");
  real("rope_theta", rope_theta, rope_theta > 1, "greater than 1");
  real("ttt_base_lr", ttt_base_lr, ttt_base_lr >= 0, "0 or positive");
}

std::string LanguageModelConfig::to_json() const {
  nlohmann::ordered_json json;
  for_each_field(*this, [&](const char* name, const auto& value) { json[name] = value; });
  return json.dump(2);
}

LanguageModelConfig LanguageModelConfig::from_json(const std::string& text, const std::string& what) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) throw ConfigError(fmt::format("[config] {} is not a JSON object", what));
  LanguageModelConfig config;
  for_each_field(config, [&](const char* name, auto& value) {
    const auto field = json.find(name);
    if (field == json.end()) return;
    if (!fits(*field, value))
      throw ConfigError(
          fmt::format("[config] {}: field '{}' has the wrong type: {}", what, name, field->dump()));
    field->get_to(value);
  });
  config.check();
  return config;
}

}  // namespace nestgrad
