// The inner loop of a layer of a trained language model.
#include <fmt/format.h>

#include "autograd/grad.h"
#include "look/inspection.h"
#include "models/language_model.h"

namespace nestgrad {

namespace {

// Numbers of a checkpoint as f64 or f32, by name.
StateDict cast_to(const StateDict& params, DType dtype) {
  StateDict out;
  for (const auto& [name, value] : params) out.emplace(name, value.cast(dtype));
  return out;
}

}  // namespace

look::InspectedLoop inspected_layer(const Checkpoint& checkpoint, const Array& tokens, std::int64_t layer) {
  const LanguageModelConfig& config = checkpoint.config;
  if (layer < 0 || layer >= config.num_hidden_layers)
    throw ConfigError(fmt::format("[inspect] there is no layer {}; the model has {}, counted from 0", layer,
                                  config.num_hidden_layers));
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

  std::vector<std::string> gates;
  bool position = false;
  const TracedModel model =
      trace_model(DType::f64, {tokens.spec()}, [&](ParamTable& table, const std::vector<Tensor>& in) {
        ttt::Stream stream;
        stream.tap_inner_loops = true;
        const Tensor losses = next_token_loss(config, Params(table), in[0], stream);
        const auto& taps = stream.taps();
        const Tensor answers = taps.at(name + ".answers");
        std::vector<Tensor> out{losses, grad(mean(losses), answers), taps.at(name + ".q"),
                                taps.at(name + ".k"), taps.at(name + ".v")};
        const std::string prefix = name + ".gates.";
        for (const auto& [key, value] : taps)
          if (key.starts_with(prefix)) gates.push_back(key.substr(prefix.size())), out.push_back(value);
        if (const auto at = taps.find(name + ".position"); at != taps.end())
          position = true, out.push_back(at->second);
        return out;
      });
  check_fits(model.params, checkpoint.params, "the checkpoint");
  const StateDict params = cast_to(checkpoint.params, DType::f64);
  const std::vector<Array> r = model.function(model.bind({tokens}, {&params}));

  look::InspectedLoop out;
  out.name = fmt::format("layer {} of a {} language model", layer, system.name);
  out.learner = [&system, sizes](const Params& p) { return system.learner(p, sizes); };
  out.policy = system.policy(sizes);
  out.outer_loss = r[0].to_vector();
  out.outer_unit = "nats per token";
  out.cotangent = r[1], out.q = r[2], out.k = r[3], out.v = r[4];
  for (std::size_t i = 0; i < gates.size(); ++i) out.gates[gates[i]] = r[5 + i];
  if (position) out.position = r.back();
  const std::string prefix = "model." + name + ".";
  for (const auto& [key, value] : params)
    if (key.starts_with(prefix)) out.params[key.substr(prefix.size())] = value;
  return out;
}

look::PrecisionProbe model_precision(const Checkpoint& checkpoint, const Array& tokens) {
  std::vector<std::string> names;
  const auto gradients = [&](DType dtype) {
    const TracedModel model =
        trace_model(dtype, {tokens.spec()}, [&](ParamTable& table, const std::vector<Tensor>& in) {
          ttt::Stream stream;
          const Tensor loss = mean(next_token_loss(checkpoint.config, Params(table), in[0], stream));
          return grad(loss, table.tensors(), {.allow_zero = true});
        });
    names.clear();
    for (const ParamSpec& p : model.params) names.push_back(p.name);
    const StateDict params = cast_to(checkpoint.params, dtype);
    return model.function(model.bind({tokens}, {&params}));
  };
  const std::vector<Array> low = gradients(DType::f32), high = gradients(DType::f64);
  return look::compare_precision(names, low, high);
}

}  // namespace nestgrad
