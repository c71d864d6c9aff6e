// The inner loop of a layer of a trained language model.
#include <fmt/format.h>

#include "look/inspection.h"
#include "look/model_numbers.h"
#include "models/language_model.h"

namespace nestgrad {

using Tensors = std::vector<Tensor>;

look::InspectedLoop inspected_layer(const Checkpoint& checkpoint, const Array& tokens, std::int64_t layer) {
  const LanguageModelConfig& config = checkpoint.config;
  look::check_layer(layer, config.num_hidden_layers);
  if (config.ttt_layer_type == kEndToEnd)
    throw ConfigError(
        "[inspect] ttt-e2e has no layers with an inner loop of their own: the whole model learns; "
        "inspect_end_to_end looks at it");
  if (config.ttt_layer_type == "attention")
    throw ConfigError(
        fmt::format("[inspect] the model's layers are '{}', which have no inner loop of their "
                    "own; inspect a model with a learner",
                    config.ttt_layer_type));
  const ttt::System& system = learner_system(config.ttt_layer_type);
  const std::string name = fmt::format("layers.{}.seq_modeling_block", layer);
  const ttt::SystemSizes sizes{config.num_attention_heads, config.hidden_size / config.num_attention_heads,
                               config.mini_batch_size};

  look::InspectedLoop out;
  out.name = fmt::format("layer {} of a {} language model", layer, system.name);
  out.learner = [&system, sizes](const Params& p) { return learner_of(system, p, sizes); };
  out.policy = system.policy(sizes);
  out.outer_unit = "nats per token";
  look::take_numbers(out, {tokens}, checkpoint.params, "model." + name + ".",
                     [&](const Params& params, const Tensors& in) {
                       ttt::Stream stream;
                       stream.tap_inner_loops = true;
                       const Tensor losses = next_token_loss(config, params, in[0], stream);
                       const auto& taps = stream.taps();
                       const auto tap = [&](const std::string& of) { return taps.at(name + of); };
                       look::LoopInModel seen{losses, tap(".answers"), {}};
                       seen.views.q = tap(".q"), seen.views.k = tap(".k"), seen.views.v = tap(".v");
                       const std::string prefix = name + ".gates.";
                       for (const auto& [key, value] : taps)
                         if (key.starts_with(prefix))
                           seen.views.gates.emplace(key.substr(prefix.size()), value);
                       if (taps.contains(name + ".position")) seen.views.position = tap(".position");
                       return seen;
                     });
  return out;
}

look::PrecisionProbe model_precision(const Checkpoint& checkpoint, const Array& tokens) {
  return look::precision_of({tokens}, checkpoint.params, [&](const Params& params, const Tensors& in) {
    ttt::Stream stream;
    return next_token_loss(checkpoint.config, params, in[0], stream);
  });
}

}  // namespace nestgrad
