#include "models/language_model.h"

#include <fmt/format.h>

#include <cmath>

#include "models/attention.h"
#include "models/end_to_end.h"
#include "ttt/slices.h"

namespace nestgrad {

struct LanguageModel::Block {
  std::string name;
  Params params;
  std::function<Tensor(Tensor, ttt::Stream&)> sequence;
};

LanguageModel::LanguageModel(const LanguageModelConfig& config, const Params& params,
                             const LanguageModelOptions& given)
    : config_(config), params_(params) {
  config_.check();
  if (config_.ttt_layer_type == kEndToEnd)
    throw ConfigError(
        "[language_model] ttt-e2e is no layer: the whole model learns, chunk after chunk; use EndToEndModel, "
        "next_token_loss or a Decoder");
  ttt::TTTLayerOptions options{.width = config_.hidden_size,
                               .heads = config_.num_attention_heads,
                               .base_lr = config_.ttt_base_lr,
                               .rope_theta = config_.rope_theta,
                               .gate = config_.use_gate};
  options.inner.policy.chunk = config_.mini_batch_size;
  options.inner.form = given.form;
  options.inner.checkpoint_every = given.checkpoint_every;
  for (std::int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    const std::string name = fmt::format("layers.{}", i);
    const Params block = params_.at("model").at(name);
    const Params own = block.at("seq_modeling_block");
    const std::string layer_name = name + ".seq_modeling_block";
    std::unique_ptr<ttt::Task> task;
    if (given.task) {
      task = given.task(own, config_.hidden_size, layer_name);
      if (!task)
        throw ConfigError(
            fmt::format("[language_model] LanguageModelOptions::task made no Task for '{}'", layer_name));
    } else if (config_.share_qk)
      task = std::make_unique<ttt::SharedQkViews>(own, config_.hidden_size, config_.conv_kernel, layer_name);
    else task = std::make_unique<ttt::ProjectedViews>(own, config_.hidden_size);
    std::function<Tensor(Tensor, ttt::Stream&)> sequence;
    if (!given.system && config_.ttt_layer_type == "attention") {
      auto layer =
          std::make_shared<Attention>(options, own, std::move(task), layer_name, given.attention_capacity);
      sequence = [layer](Tensor x, ttt::Stream& s) { return (*layer)(x, s); };
    } else {
      ttt::System system = given.system ? *given.system : learner_system(config_.ttt_layer_type);
      if (config_.share_qk || config_.pre_conv) system.rotary_in_sequence = false;
      options.attention_window = window_of(config_, system);
      auto layer = std::make_shared<ttt::TTTLayer>(own, options, std::move(task), system, layer_name);
      sequence = [layer](Tensor x, ttt::Stream& s) { return (*layer)(x, s); };
    }
    blocks_.push_back(std::make_unique<Block>(Block{name, block, std::move(sequence)}));
  }
}

LanguageModel::~LanguageModel() = default;

Tensor LanguageModel::run(const Block& block, Tensor h, ttt::Stream& stream) const {
  const Params& p = block.params;
  const std::int64_t width = config_.hidden_size, hidden = config_.intermediate_size,
                     kernel = config_.conv_kernel;
  const auto norm = [&](const std::string& name, Tensor x) {
    return rms_norm(x, p(name, {width}, Init::ones()), config_.rms_norm_eps);
  };
  if (config_.pre_conv) {
    const Scope scope(block.name + ".conv");
    const Tensor x = norm("conv.norm.weight", h);
    const Init init = Init::of_taps(kernel);
    const Tensor bias = p("conv.conv.bias", {width}, Init::zeros());
    h = h + stream.conv(block.name + ".conv", x, p("conv.conv.weight", {width, 1, kernel}, init), bias);
  }
  const Tensor mixed = block.sequence(norm("seq_norm.weight", h), stream);
  stream.tap(block.name + ".seq_modeling_block.output", mixed);
  h = h + mixed;
  const Scope scope(block.name + ".mlp");
  const Tensor x = norm("ffn_norm.weight", h);
  const Tensor gate = silu(ttt::linear(x, p("mlp.gate_proj.weight", {hidden, width})));
  const Tensor up = ttt::linear(x, p("mlp.up_proj.weight", {hidden, width}));
  return h + ttt::linear(gate * up, p("mlp.down_proj.weight", {width, hidden}));
}

Tensor LanguageModel::logits(Tensor tokens, ttt::Stream& stream) const {
  const std::int64_t vocab = config_.vocab_size, width = config_.hidden_size;
  const Tensor embedding = params_("model.embed_tokens.weight", {vocab, width});
  Tensor h = gather(embedding, tokens);
  for (const auto& block : blocks_) h = run(*block, h, stream);
  const Scope scope("head");
  h = rms_norm(h, params_("model.norm.weight", {width}, Init::ones()), config_.rms_norm_eps);
  return ttt::linear(h, config_.tie_word_embeddings ? embedding : params_("lm_head.weight", {vocab, width}));
}

LogitsFn language_model(const LanguageModelConfig& config, const LanguageModelOptions& options) {
  config.check();
  return [config, options](const Params& params, Tensor tokens, ttt::Stream& stream) {
    return LanguageModel(config, params, options).logits(tokens, stream);
  };
}

std::string why_not_cut(const LanguageModelConfig& config, std::int64_t tokens, std::int64_t slices) {
  if (slices == 1) return {};
  if (config.ttt_layer_type == kEndToEnd)
    return "ttt-e2e learns chunk after chunk with the whole model: its sequences cannot be cut";
  if (config.num_attention_heads % slices == 0) return {};
  const std::string heads =
      fmt::format("{} heads cannot be shared by {} slices of a sequence", config.num_attention_heads, slices);
  if (config.ttt_layer_type == "attention" || window_of(config, learner_system(config.ttt_layer_type)) > 0)
    return heads + ", which attention needs: choose a divisor of the heads";
  if (const std::string why = ttt::why_not_whole_chunks(layer_policy(config), tokens); !why.empty())
    return fmt::format(
        "{}, and states are passed on only between whole chunks: {}; choose a divisor of the heads, or slices "
        "of a multiple of {} tokens",
        heads, why, config.mini_batch_size);
  return {};
}

Tensor logits_of(const LogitsFn& model, const Params& params, Tensor tokens, ttt::Stream& stream) {
  require_function("model", "the model, from tokens to logits,", model);
  const Tensor logits = model(params, tokens, stream);
  if (logits.rank() != 3 || logits.dim(0) != tokens.dim(0) || logits.dim(1) != tokens.dim(1) ||
      logits.dim(2) < 1)
    throw ShapeError(
        fmt::format("[model] the model makes logits {} of tokens {}; they must be [{}, {}, vocabulary]",
                    to_string(logits.spec()), to_string(tokens.spec()), tokens.dim(0), tokens.dim(1)));
  return logits;
}

Tensor next_token_loss(const LogitsFn& model, const Params& params, Tensor tokens, ttt::Stream& stream) {
  const std::int64_t time = tokens.dim(1) - 1;
  const Tensor next = slice(tokens, 1, 1, time + 1);
  return cross_entropy(logits_of(model, params, slice(tokens, 1, 0, time), stream), next);
}

Tensor next_token_loss(const LanguageModelConfig& config, const Params& params, Tensor tokens,
                       ttt::Stream& stream, int checkpoint_every, Tensor step) {
  if (config.ttt_layer_type != kEndToEnd)
    return next_token_loss(language_model(config, {.checkpoint_every = checkpoint_every}), params, tokens,
                           stream);
  if (stream.is_packed())
    throw ConfigError(
        "[language_model] ttt-e2e goes on training over the whole of a sequence, and reads one document in each; give each "
        "a sequence of its own");
  if (stream.is_cut())
    throw ConfigError("[language_model] " + why_not_cut(config, tokens.dim(1) - 1, stream.ranks().size()));
  return EndToEndModel(end_to_end_config(config, checkpoint_every), params, step).loss(tokens);
}

}  // namespace nestgrad
