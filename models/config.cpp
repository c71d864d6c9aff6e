#include "models/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/core/nearest_name.h"
#include "engine/io/file.h"
#include "models/json.h"
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
  fn("ilr_init", c.ilr_init);
  fn("ilr_warmup_steps", c.ilr_warmup_steps);
}

// Bounds of what is no mistake; a model near one of them is refused by kMostParameters.
constexpr std::int64_t kMostMiniBatch = std::int64_t{1} << 24;
constexpr std::int64_t kMostKernel = std::int64_t{1} << 10;
constexpr std::int64_t kMostWindow = std::int64_t{1} << 30;
constexpr std::int64_t kMostLayers = std::int64_t{1} << 10;
constexpr double kMostParameters = 1e10;  // 40 GB

bool is_causal(const ttt::System& system) { return system.policy({1, 2, 16}).causal(); }

// Published names of the first two.
constexpr std::pair<std::string_view, std::string_view> kPublished[] = {{"linear", "ttt-linear"},
                                                                        {"mlp", "ttt-mlp"}};

}  // namespace

const ttt::System& learner_system(const std::string& ttt_layer_type) {
  return ttt::system_named(learner_name(ttt_layer_type));
}

ttt::Policy layer_policy(const LanguageModelConfig& c) {
  return learner_system(c.ttt_layer_type)
      .policy({c.num_attention_heads, c.hidden_size / c.num_attention_heads, c.mini_batch_size});
}

std::int64_t window_of(const LanguageModelConfig& config, const ttt::System& system) {
  if (config.attention_window != kAsPublished) return config.attention_window;
  return system.attention_beside ? config.mini_batch_size : 0;
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

std::string learner_name(const std::string& ttt_layer_type) {
  for (const auto& [published, name] : kPublished)
    if (ttt_layer_type == published) return std::string(name);
  return ttt_layer_type;
}

void check_extent(std::string_view what, const char* field, std::int64_t value, std::int64_t most) {
  if (value < 1) throw ConfigError(fmt::format("[{}] {} must be at least 1, it is {}", what, field, value));
  if (value > most)
    throw ConfigError(fmt::format("[{}] {} must be at most {}, it is {}", what, field, most, value));
}

void check_size(std::string_view what, const ModelSize& size) {
  check_extent(what, "vocab_size", size.vocab_size, kMostExtent);
  check_extent(what, "hidden_size", size.hidden_size, kMostExtent);
  check_extent(what, "intermediate_size", size.intermediate_size, kMostExtent);
  check_extent(what, "num_hidden_layers", size.num_hidden_layers, kMostLayers);
  check_extent(what, "num_attention_heads", size.num_attention_heads, kMostExtent);
  if (const double parameters = least_parameters(size); parameters > kMostParameters)
    throw ConfigError(fmt::format(
        "[{}] vocab_size {}, hidden_size {}, intermediate_size {} and num_hidden_layers {} ask for {:.3g} "
        "parameters; a model can have {:.3g}",
        what, size.vocab_size, size.hidden_size, size.intermediate_size, size.num_hidden_layers, parameters,
        kMostParameters));
}

double least_parameters(const ModelSize& size) {
  const auto width = static_cast<double>(size.hidden_size),
             hidden = static_cast<double>(size.intermediate_size);
  return static_cast<double>(size.vocab_size) * width +
         static_cast<double>(size.num_hidden_layers) * (3 * width * width + 3 * width * hidden);
}

void LanguageModelConfig::check() const {
  check_size("config", {.vocab_size = vocab_size,
                        .hidden_size = hidden_size,
                        .intermediate_size = intermediate_size,
                        .num_hidden_layers = num_hidden_layers,
                        .num_attention_heads = num_attention_heads});
  check_extent("config", "mini_batch_size", mini_batch_size, kMostMiniBatch);
  check_extent("config", "conv_kernel", conv_kernel, kMostKernel);
  if (hidden_size % num_attention_heads)
    throw ConfigError(fmt::format("[config] hidden_size {} is not a multiple of num_attention_heads {}",
                                  hidden_size, num_attention_heads));
  if (hidden_size / num_attention_heads % 2)
    throw ConfigError(fmt::format(
        "[config] hidden_size / num_attention_heads is {}; rotary embeddings need an even head dimension",
        hidden_size / num_attention_heads));
  if (ttt_layer_type != "attention" && ttt_layer_type != kEndToEnd) {
    const std::string name = learner_name(ttt_layer_type);
    const std::deque<ttt::System>& systems = ttt::systems();
    const auto at = std::ranges::find(systems, name, &ttt::System::name);
    if (at == systems.end() || !is_causal(*at)) {
      std::vector<std::string> layers;  // as this field names them
      for (const std::string& layer : layer_names())
        if (layer != "nadaraya-watson") layers.push_back(layer_type(layer));
      throw ConfigError(fmt::format(
          "[config] ttt_layer_type '{}' is not {}{}; a language model needs one of {}, or one made known by "
          "register_system",
          printable(ttt_layer_type), at == systems.end() ? "known" : "causal",
          did_you_mean(ttt_layer_type, layers), fmt::join(layers, ", ")));
    }
  }
  if (attention_window != 0 && attention_window != kAsPublished)
    check_extent("config", "attention_window", attention_window, kMostWindow);
  if (attention_window > 0 && ttt_layer_type == "attention")
    throw ConfigError(fmt::format(
        "[config] attention_window is {}, and ttt_layer_type '{}' sees the whole context: a window stands beside a learner",
        attention_window, ttt_layer_type));
  if (ttt_layer_type == kEndToEnd && (use_gate || share_qk || pre_conv))
    throw ConfigError(fmt::format(
        "[config] use_gate, share_qk and pre_conv are of layers between blocks (--backbone mamba); {} has none",
        kEndToEnd));
  if (ttt_layer_type == kEndToEnd && !tie_word_embeddings)
    throw ConfigError(fmt::format(
        "[config] tie_word_embeddings is false; {} reads and writes with one embedding", kEndToEnd));
  const auto real = [](const char* field, double value, bool fine, const char* wanted) {
    if (!fine || !std::isfinite(value))
      throw ConfigError(fmt::format("[config] {} must be {}, it is {}", field, wanted, value));
  };
  real("rms_norm_eps", rms_norm_eps, rms_norm_eps > 0, "positive");
  real("rope_theta", rope_theta, rope_theta > 1, "greater than 1");
  real("ttt_base_lr", ttt_base_lr, ttt_base_lr >= 0, "0 or positive");
  real("ilr_init", ilr_init, ilr_init >= 0, "0 or positive");
  if (ilr_warmup_steps < 0)
    throw ConfigError(
        fmt::format("[config] ilr_warmup_steps must be 0 or positive, it is {}", ilr_warmup_steps));
  if (ttt_layer_type != kEndToEnd && (ilr_init != 0 || ilr_warmup_steps != 0))
    throw ConfigError(fmt::format(
        "[config] ilr_init and ilr_warmup_steps are the ramp of the inner rate of {}; ttt_layer_type is '{}'",
        kEndToEnd, ttt_layer_type));
  if (ilr_init != 0 && ilr_warmup_steps == 0)
    throw ConfigError(
        "[config] ilr_init is where the inner rate's ramp begins; ilr_warmup_steps is 0, so there is none");
}

void LanguageModelConfig::check_against(std::int64_t parameters, const std::string& file) const {
  const double least =
      least_parameters({vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads});
  if (static_cast<double>(parameters) < least)
    throw ConfigError(
        fmt::format("[config] {} holds {} parameters, its configuration "
                    "(hidden_size {}, num_hidden_layers {}) asks for at "
                    "least {:.0f}; it does not fit this configuration",
                    file, parameters, hidden_size, num_hidden_layers, least));
}

std::string LanguageModelConfig::to_json() const {
  nlohmann::ordered_json json;
  for_each_field(*this, [&](const char* name, const auto& value) { json[name] = value; });
  if (ttt_layer_type != kEndToEnd)  // a ramp is no part of other models
    for (const char* ramp : {"ilr_init", "ilr_warmup_steps"}) json.erase(ramp);
  return json.dump(2);
}

LanguageModelConfig LanguageModelConfig::from_json(const std::string& text, const std::string& what) {
  const nlohmann::json json = parse_json(text);
  if (!json.is_object()) throw ConfigError(fmt::format("[config] {} {}", what, why_no_object(text)));
  LanguageModelConfig config;
  for_each_field(config, [&](const char* name, auto& value) {
    const auto field = json.find(name);
    if (field == json.end()) return;
    if (!fits(*field, value))
      throw ConfigError(
          fmt::format("[config] {}: field '{}' has the wrong type: {}", what, name, shown(*field)));
    field->get_to(value);
  });
  config.check();
  return config;
}

}  // namespace nestgrad
