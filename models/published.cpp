#include "models/published.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>

#include "engine/io/file.h"
#include "models/json.h"

namespace nestgrad {

namespace {

using nlohmann::json;

// TTTConfig's defaults where ours are others.
constexpr std::array<std::pair<const char*, std::int64_t>, 5> kTorchDefaults{{{"vocab_size", 32000},
                                                                              {"hidden_size", 2048},
                                                                              {"intermediate_size", 5504},
                                                                              {"num_hidden_layers", 24},
                                                                              {"num_attention_heads", 32}}};
// ModelConfig's of the JAX release.
constexpr std::array<std::pair<const char*, std::int64_t>, 5> kJaxDefaults{{{"vocab_size", 32000},
                                                                            {"hidden_size", 4096},
                                                                            {"intermediate_size", 11008},
                                                                            {"num_hidden_layers", 32},
                                                                            {"num_attention_heads", 32}}};

void add_defaults(json& config, const std::array<std::pair<const char*, std::int64_t>, 5>& defaults) {
  for (const auto& [field, value] : defaults)
    if (!config.contains(field)) config[field] = value;
}

[[noreturn]] void refuse(const std::string& what, const char* field, const json& value,
                         const std::string& wanted) {
  throw ConfigError(fmt::format("[config] {}: {} is {}; {}", printable(what), field, shown(value), wanted));
}

void check_torch(const json& config, const std::string& what) {
  const auto only = [&](const char* field, const json& wanted) {
    if (const auto at = config.find(field); at != config.end() && !at->is_null() && *at != wanted)
      refuse(what, field, *at, fmt::format("it can only be {}", wanted.dump()));
  };
  only("model_type", "ttt");
  only("hidden_act", "silu");
  only("rope_scaling", nullptr);
  if (const auto heads = config.find("num_attention_heads"); heads != config.end())
    only("num_key_value_heads", *heads);
}

// JAX field names in those of the PyTorch release.
void translate_jax(json& config, const std::string& what) {
  const json block = config["seq_modeling_block"];
  const std::string name = block.is_string() ? block.get<std::string>() : "";
  const bool base = name.ends_with("_base");
  const std::string kind = base ? name.substr(0, name.size() - 5) : name;
  if (kind != "ttt_linear" && kind != "ttt_mlp")
    refuse(what, "seq_modeling_block", block,
           "read are ttt_linear and ttt_mlp (Mamba-like backbone), ttt_linear_base and ttt_mlp_base");
  config["ttt_layer_type"] = kind.substr(4);
  config["use_gate"] = config["share_qk"] = !base;
  if (const auto width = config.find("conv_width"); width != config.end()) config["conv_kernel"] = *width;
  if (!config.contains("tie_word_embeddings")) config["tie_word_embeddings"] = false;
  add_defaults(config, kJaxDefaults);
}

enum class Layout : std::uint8_t {
  same,
  transposed,  // [in, out] to [out, in], [kernel, 1, width] to [width, 1, kernel]
  head_rows,   // [heads, in, 1] to [heads, 1, in]: the same numbers in the same order
};
struct Renamed {
  std::string_view jax, torch;
  Layout layout;
};
constexpr Renamed kOfModel[] = {
    {"model/wte/embedding", "model.embed_tokens.weight", Layout::same},
    {"model/ln_f/kernel", "model.norm.weight", Layout::same},
    {"lm_head/kernel", "lm_head.weight", Layout::transposed},
};
constexpr std::string_view kJaxLayer = "model/h/";  // then the layer's number, '/', and one of these
constexpr Renamed kOfLayer[] = {
    {"seq_norm/kernel", "seq_norm.weight", Layout::same},
    {"ffn_norm/kernel", "ffn_norm.weight", Layout::same},
    {"feed_forward/w1/kernel", "mlp.gate_proj.weight", Layout::transposed},
    {"feed_forward/w2/kernel", "mlp.down_proj.weight", Layout::transposed},
    {"feed_forward/w3/kernel", "mlp.up_proj.weight", Layout::transposed},
    {"conv/conv_norm/kernel", "conv.norm.weight", Layout::same},
    {"conv/conv1/kernel", "conv.conv.weight", Layout::transposed},
    {"conv/conv1/bias", "conv.conv.bias", Layout::same},
    {"seq_modeling_block/wq/kernel", "seq_modeling_block.q_proj.weight", Layout::transposed},
    {"seq_modeling_block/wk/kernel", "seq_modeling_block.k_proj.weight", Layout::transposed},
    {"seq_modeling_block/wv/kernel", "seq_modeling_block.v_proj.weight", Layout::transposed},
    {"seq_modeling_block/wo/kernel", "seq_modeling_block.o_proj.weight", Layout::transposed},
    {"seq_modeling_block/wg/kernel", "seq_modeling_block.g_proj.weight", Layout::transposed},
    {"seq_modeling_block/conv_q/kernel", "seq_modeling_block.conv_q.weight", Layout::transposed},
    {"seq_modeling_block/conv_q/bias", "seq_modeling_block.conv_q.bias", Layout::same},
    {"seq_modeling_block/conv_k/kernel", "seq_modeling_block.conv_k.weight", Layout::transposed},
    {"seq_modeling_block/conv_k/bias", "seq_modeling_block.conv_k.bias", Layout::same},
    {"seq_modeling_block/ttt_dense_0", "seq_modeling_block.W1", Layout::same},
    {"seq_modeling_block/ttt_bias_0", "seq_modeling_block.b1", Layout::same},
    {"seq_modeling_block/ttt_dense_1", "seq_modeling_block.W2", Layout::same},
    {"seq_modeling_block/ttt_bias_1", "seq_modeling_block.b2", Layout::same},
    {"seq_modeling_block/ttt_norm/scale", "seq_modeling_block.ttt_norm_weight", Layout::same},
    {"seq_modeling_block/ttt_norm/bias", "seq_modeling_block.ttt_norm_bias", Layout::same},
    {"seq_modeling_block/learnable_ttt_lr/kernel", "seq_modeling_block.learnable_ttt_lr_weight",
     Layout::head_rows},
    {"seq_modeling_block/learnable_ttt_lr/bias", "seq_modeling_block.learnable_ttt_lr_bias", Layout::same},
    {"seq_modeling_block/learnable_token_idx", "seq_modeling_block.learnable_token_idx", Layout::same},
    {"seq_modeling_block/post_norm/scale", "seq_modeling_block.post_norm.weight", Layout::same},
    {"seq_modeling_block/post_norm/bias", "seq_modeling_block.post_norm.bias", Layout::same},
};

// An array of an unexpected rank stays as it is, for check_fits to show.
Array in_layout(const Array& a, Layout layout) {
  const Shape& shape = a.shape();
  if (layout == Layout::head_rows && shape.size() == 3 && shape[2] == 1)
    return a.reshaped({shape[0], 1, shape[1]});
  if (layout != Layout::transposed || !(shape.size() == 2 || (shape.size() == 3 && shape[1] == 1))) return a;
  Array out(a.dtype(), {shape.rbegin(), shape.rend()});
  const auto rows = static_cast<std::size_t>(shape.front()), columns = static_cast<std::size_t>(shape.back());
  dispatch(a.dtype(), [&]<class T>(T) {
    const auto from = a.as<T>();
    const auto to = out.as<T>();
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < columns; ++j) to[j * rows + i] = from[i * columns + j];
  });
  return out;
}

struct Place {
  std::string name;
  Layout layout;
};
std::optional<Place> place_of(std::string_view jax) {
  for (const char* prefix : {"params/params/", "params/"})
    if (jax.starts_with(prefix)) {
      jax.remove_prefix(std::string_view(prefix).size());
      break;
    }
  if (const auto at = std::ranges::find(kOfModel, jax, &Renamed::jax); at != std::end(kOfModel))
    return Place{std::string(at->torch), at->layout};
  if (!jax.starts_with(kJaxLayer)) return std::nullopt;
  jax.remove_prefix(kJaxLayer.size());
  const std::string_view layer = jax.substr(0, jax.find('/'));
  if (layer.empty() || layer.find_first_not_of("0123456789") != layer.npos || layer.size() == jax.size())
    return std::nullopt;
  const auto at = std::ranges::find(kOfLayer, jax.substr(layer.size() + 1), &Renamed::jax);
  if (at == std::end(kOfLayer)) return std::nullopt;
  return Place{fmt::format("model.layers.{}.{}", layer, at->torch), at->layout};
}

// As many as parameters name, whichever of a layer's there are: what is missing is told with the others of its layer there.
std::int64_t layers_in(const StateDict& params) {
  const std::string before = "model.layers.";
  std::int64_t out = 0;
  for (const auto& [name, value] : params) {
    if (!name.starts_with(before)) continue;
    const std::string number = name.substr(before.size(), name.find('.', before.size()) - before.size());
    if (number.empty() || number.size() > 6 || number.find_first_not_of("0123456789") != number.npos)
      continue;
    out = std::max<std::int64_t>(out, std::stoll(number) + 1);
  }
  return out;
}

}  // namespace

LanguageModelConfig published_config(const std::string& text, const std::string& what) {
  json config = parse_json(text);
  if (!config.is_object()) return LanguageModelConfig::from_json(text, what);  // which says so
  if (config.contains("seq_modeling_block")) translate_jax(config, what);
  else check_torch(config, what);
  if (config.contains("model_type")) add_defaults(config, kTorchDefaults);
  return LanguageModelConfig::from_json(config.dump(-1, ' ', false, json::error_handler_t::replace), what);
}

bool is_jax_parameter(const std::string& name) { return name != "step" && !name.starts_with("opt_state/"); }

StateDict from_jax_names(const StateDict& params, const std::string& what) {
  StateDict out;
  std::vector<std::string> unknown;
  std::map<std::string, std::string> named;  // by our name, the one it has there
  for (const auto& [name, value] : params) {
    const auto place = place_of(name);
    if (!place) {
      unknown.push_back(name);
      continue;
    }
    if (const auto [first, is_new] = named.emplace(place->name, name); !is_new)
      throw ConfigError(fmt::format("[checkpoint] {}: '{}' and '{}' are one parameter; leave one of them out",
                                    printable(what), printable(first->second), printable(name)));
    out.emplace(place->name, in_layout(value, place->layout));
  }
  if (!unknown.empty())
    throw ConfigError(fmt::format("[checkpoint] {}: {} are no parameters of the TTT models of ttt-lm-jax",
                                  printable(what), listed(unknown)));
  return out;
}

LanguageModelConfig config_from_shapes(const StateDict& params, const std::string& what) {
  const std::string first = "model.layers.0.";
  const auto has = [&](const std::string& name) { return params.contains(name); };
  const auto extent = [&](const std::string& name, std::size_t axis) {
    const auto at = params.find(name);
    if (at == params.end() || at->second.shape().size() <= axis)
      throw ConfigError(fmt::format(
          "[checkpoint] {} has no config.json beside it, and its shapes do not tell the model: {}; "
          "write a config.json (docs/published-models.md)",
          printable(what),
          at == params.end() ? fmt::format("there is no '{}'", name)
                             : fmt::format("'{}' is {}", name, to_string(at->second.shape()))));
    return at->second.shape()[axis];
  };
  const std::string block = first + "seq_modeling_block.";
  LanguageModelConfig c;
  c.vocab_size = extent("model.embed_tokens.weight", 0);
  c.hidden_size = extent("model.embed_tokens.weight", 1);
  c.intermediate_size = extent(first + "mlp.gate_proj.weight", 0);
  c.num_attention_heads = extent(block + "W1", 0);
  c.mini_batch_size = extent(block + "learnable_token_idx", 0);
  c.num_hidden_layers = layers_in(params);
  const bool mlp = has(block + "W2");
  c.ttt_layer_type = mlp ? "mlp" : "linear";
  c.ttt_base_lr = mlp ? 0.1 : 1.0;
  c.use_gate = has(block + "g_proj.weight");
  c.share_qk = has(block + "conv_q.weight");
  c.pre_conv = has(first + "conv.conv.weight");
  if (c.share_qk) c.conv_kernel = extent(block + "conv_q.weight", 2);
  else if (c.pre_conv) c.conv_kernel = extent(first + "conv.conv.weight", 2);
  c.tie_word_embeddings = !has("lm_head.weight");
  c.check();
  return c;
}

}  // namespace nestgrad
