// Small language models for tests.
#pragma once

#include "models/decoder.h"
#include "models/language_model.h"
#include "tests/testing.h"

namespace nestgrad::testing {

enum class Backbone : std::uint8_t { transformer, mamba };

inline LanguageModelConfig small_model(const std::string& layer, Backbone backbone = Backbone::transformer) {
  const bool mamba = backbone == Backbone::mamba;
  return {.vocab_size = 13,
          .hidden_size = 8,
          .intermediate_size = 12,
          .num_hidden_layers = 2,
          .num_attention_heads = 2,
          .ttt_layer_type = layer,
          .ttt_base_lr = 1.0,
          .mini_batch_size = 4,
          .use_gate = mamba,
          .share_qk = mamba,
          .pre_conv = mamba};
}

// Every layer type with every backbone.
inline std::vector<LanguageModelConfig> small_models() {
  std::vector<LanguageModelConfig> out;
  for (const char* layer : {"linear", "mlp", "attention"})
    for (const Backbone backbone : {Backbone::transformer, Backbone::mamba})
      out.push_back(small_model(layer, backbone));
  return out;
}
inline std::string name_of(const LanguageModelConfig& c) {
  return c.ttt_layer_type + (c.share_qk ? ", mamba" : ", transformer");
}

// i32 [batch, time] below vocab.
inline Array random_tokens(std::int64_t batch, std::int64_t time, std::int64_t vocab,
                           std::uint64_t seed = 3) {
  Array out(DType::i32, {batch, time});
  std::uint64_t i = 0;
  for (std::int32_t& id : out.as<std::int32_t>())
    id = static_cast<std::int32_t>(random_below(static_cast<std::uint32_t>(vocab), seed, 0, i++));
  return out;
}

// Column t of tokens [batch, time]: [batch].
inline Array column(const Array& tokens, std::int64_t t) {
  return trace([&](Tensor all) { return reshape(slice(all, 1, t, t + 1), {all.dim(0)}); },
               tokens.spec())(tokens);
}

// tokens -> logits.
inline TracedModel logits_model(const LanguageModelConfig& config, DType dtype, const Spec& tokens,
                                ttt::FormChoice form = ttt::FormChoice::automatic) {
  return trace_model(dtype, {tokens}, [&](ParamTable& table, const Tensors& in) {
    ttt::Stream stream;
    return Tensors{LanguageModel(config, Params(table), {.form = form}).logits(in[0], stream)};
  });
}

// tokens [batch, time + 1] -> mean loss, then the gradient of every parameter.
inline TracedModel training_model(const LanguageModelConfig& config, DType dtype, const Spec& tokens,
                                  int checkpoint_every = 0) {
  return trace_model(dtype, {tokens}, [&](ParamTable& table, const Tensors& in) {
    ttt::Stream stream;
    const Tensor loss = mean(next_token_loss(config, Params(table), in[0], stream, checkpoint_every));
    Tensors out{loss};
    for (const Tensor& g : grad(loss, table.tensors())) out.push_back(g);
    return out;
  });
}

// Parameters away from their starting values, so that every one of them matters.
inline StateDict random_parameters(const std::vector<ParamSpec>& params, DType dtype,
                                   std::uint64_t seed = 5) {
  StateDict out;
  for (const ParamSpec& p : params) {
    Array value = random({DType::f64, p.shape}, seed++, -0.4, 0.4);
    if (p.init.kind == Init::Kind::constant)
      for (double& x : value.as<double>()) x += p.init.value;
    out.emplace(p.name, value.cast(dtype));
  }
  return out;
}
inline StateDict random_parameters(const TracedModel& model, DType dtype, std::uint64_t seed = 5) {
  return random_parameters(model.params, dtype, seed);
}

}  // namespace nestgrad::testing
