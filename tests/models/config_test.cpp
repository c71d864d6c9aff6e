// The promise: a configuration survives JSON, and one that
// does not make sense is refused with the field's name.
#include "models/config.h"

#include <limits>

#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

std::string refusal_of(const std::function<void(LanguageModelConfig&)>& change) {
  LanguageModelConfig config;
  change(config);
  return message_of<ConfigError>([&] { config.check(); });
}

std::string refusal_of_json(const std::string& text) {
  return message_of<ConfigError>([&] { LanguageModelConfig::from_json(text, "config.json"); });
}

}  // namespace

TEST_CASE("a configuration survives JSON, every field of it") {
  const LanguageModelConfig config{.vocab_size = 61,
                                   .hidden_size = 48,
                                   .intermediate_size = 7,
                                   .num_hidden_layers = 3,
                                   .num_attention_heads = 4,
                                   .ttt_layer_type = "mlp",
                                   .ttt_base_lr = 0.1,
                                   .mini_batch_size = 5,
                                   .use_gate = true,
                                   .share_qk = true,
                                   .pre_conv = true,
                                   .conv_kernel = 2,
                                   .rms_norm_eps = 1e-5,
                                   .rope_theta = 12345.678,
                                   .tie_word_embeddings = false};
  CHECK(LanguageModelConfig::from_json(config.to_json(), "") == config);
  CHECK(LanguageModelConfig::from_json(LanguageModelConfig().to_json(), "") == LanguageModelConfig());
  CHECK(LanguageModelConfig::from_json("{}", "") == LanguageModelConfig());
  CHECK(LanguageModelConfig::from_json(R"({"model_type": "ttt", "hidden_size": 64})", "").hidden_size == 64);
  CHECK(LanguageModelConfig::from_json(R"({"ttt_base_lr": 2})", "").ttt_base_lr == 2.0);
}

TEST_CASE("every field is written under its published name") {
  const std::string json = LanguageModelConfig().to_json();
  for (const std::string field :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "ttt_layer_type", "ttt_base_lr", "attention_window", "mini_batch_size", "use_gate", "share_qk",
        "pre_conv", "conv_kernel", "rms_norm_eps", "rope_theta", "tie_word_embeddings"}) {
    CAPTURE(field);
    CHECK(count(json, fmt::format("\"{}\":", field)) == 1);
  }
  CHECK(count(json, "\":") == 16);
}

TEST_CASE("the ramp of an inner rate is of the model that has one, and is read as it was written") {
  LanguageModelConfig config;
  config.ttt_layer_type = kEndToEnd;
  CHECK(contains(config.to_json(), "\"ilr_warmup_steps\": 0"));
  config.ilr_init = 0.25, config.ilr_warmup_steps = 40;
  config.check();
  CHECK(LanguageModelConfig::from_json(config.to_json(), "a test") == config);
  const auto refusal = [&](auto change) {
    LanguageModelConfig bad = config;
    change(bad);
    return message_of<ConfigError>([&] { bad.check(); });
  };
  CHECK(contains(refusal([](auto& c) { c.ttt_layer_type = "linear"; }), "are the ramp of the inner rate"));
  CHECK(
      contains(refusal([](auto& c) { c.ilr_warmup_steps = 0; }), "ilr_warmup_steps is 0, so there is none"));
  CHECK(
      contains(refusal([](auto& c) { c.ilr_warmup_steps = -1; }), "ilr_warmup_steps must be 0 or positive"));
  CHECK(contains(refusal([](auto& c) { c.ilr_init = -1; }), "ilr_init must be 0 or positive"));
}

TEST_CASE(
    "LaCT and KV binding have attention over a mini-batch beside them, unless it is configured otherwise") {
  LanguageModelConfig config;
  config.mini_batch_size = 24;
  const auto window = [&](const std::string& learner) { return window_of(config, learner_system(learner)); };
  for (const std::string learner :
       {"lact", "lact-sgd", "lact-prenorm", "lact-low-rank", "lact-v1", "lact-v6", "kv-binding"}) {
    CAPTURE(learner);
    CHECK(window(learner) == 24);
  }
  for (const std::string learner : {"linear", "mlp", "titans-mlp", "linear-attention", "lact-nvs"})
    CHECK(window(learner) == 0);
  config.attention_window = 7;
  CHECK(window("lact") == 7);
  CHECK(window("linear") == 7);
  config.attention_window = 0;
  CHECK(window("lact") == 0);
}

TEST_CASE("TTT-E2E has one embedding, to read and to write with") {
  LanguageModelConfig config;
  config.ttt_layer_type = kEndToEnd;
  config.check();
  config.tie_word_embeddings = false;
  CHECK(contains(message_of<ConfigError>([&] { config.check(); }), "tie_word_embeddings is false; ttt-e2e"));
}

TEST_CASE("a value that makes no sense is refused by the field's name") {
  using Config = LanguageModelConfig;
  const std::pair<const char*, std::int64_t Config::*> counts[] = {
      {"vocab_size", &Config::vocab_size},
      {"hidden_size", &Config::hidden_size},
      {"intermediate_size", &Config::intermediate_size},
      {"num_hidden_layers", &Config::num_hidden_layers},
      {"num_attention_heads", &Config::num_attention_heads},
      {"mini_batch_size", &Config::mini_batch_size},
      {"conv_kernel", &Config::conv_kernel}};
  for (const auto& [name, field] : counts)
    for (const std::int64_t value :
         {std::int64_t{0}, std::int64_t{-3}, std::numeric_limits<std::int64_t>::min()})
      CHECK(contains(refusal_of([&, member = field](Config& c) { c.*member = value; }),
                     fmt::format("{} must be at least 1, it is {}", name, value)));
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  for (const double value : {0.0, -1e-6, nan, infinity})
    CHECK(contains(refusal_of([&](Config& c) { c.rms_norm_eps = value; }), "rms_norm_eps must be"));
  for (const double value : {1.0, -2.0, nan, infinity})
    CHECK(contains(refusal_of([&](Config& c) { c.rope_theta = value; }), "rope_theta must be"));
  for (const double value : {-0.1, nan, infinity})
    CHECK(contains(refusal_of([&](Config& c) { c.ttt_base_lr = value; }), "ttt_base_lr must be"));
  CHECK(contains(refusal_of([](Config& c) { c.num_attention_heads = 3; }),
                 "hidden_size 128 is not a multiple of num_attention_heads 3"));
  CHECK(contains(refusal_of([](Config& c) { c.hidden_size = 6; }),
                 "rotary embeddings need an even head dimension"));
  CHECK(contains(refusal_of([](Config& c) { c.ttt_layer_type = "rwkv"; }),
                 "ttt_layer_type 'rwkv' is not known; a language model needs one of linear, mlp, "));
  CHECK(contains(refusal_of([](Config& c) { c.ttt_layer_type = "gated-deltanet"; }),
                 "did you mean 'gated-delta-net'?"));
  CHECK(contains(refusal_of([](Config& c) { c.ttt_layer_type = "lact-nvs"; }), "'lact-nvs' is not causal"));
}

TEST_CASE("a field of the wrong type is refused by name, with the source and what it holds") {
  CHECK(contains(refusal_of_json(R"({"hidden_size": "wide"})"),
                 "config.json: field 'hidden_size' has the wrong type: \"wide\""));
  CHECK(
      contains(refusal_of_json(R"({"hidden_size": 64.5})"), "field 'hidden_size' has the wrong type: 64.5"));
  CHECK(
      contains(refusal_of_json(R"({"hidden_size": true})"), "field 'hidden_size' has the wrong type: true"));
  CHECK(
      contains(refusal_of_json(R"({"hidden_size": null})"), "field 'hidden_size' has the wrong type: null"));
  CHECK(contains(refusal_of_json(R"({"hidden_size": 18446744073709551615})"), "hidden_size"));
  CHECK(contains(refusal_of_json(R"({"use_gate": 1})"), "field 'use_gate' has the wrong type: 1"));
  CHECK(contains(refusal_of_json(R"({"ttt_base_lr": "1.0"})"), "field 'ttt_base_lr' has the wrong type"));
  CHECK(
      contains(refusal_of_json(R"({"ttt_layer_type": 3})"), "field 'ttt_layer_type' has the wrong type: 3"));
  CHECK(contains(refusal_of_json(R"({"vocab_size": 0})"), "vocab_size must be at least 1"));
  for (const char* text : {"", "[]", "{", "3", "{\"a\":}"})
    CHECK(contains(refusal_of_json(text), "config.json is not a JSON object"));
}

TEST_CASE("a model too large to be meant is refused by field and number, before anything is made") {
  using Config = LanguageModelConfig;
  CHECK(contains(refusal_of([](Config& c) { c.num_hidden_layers = std::int64_t{1} << 31; }),
                 "num_hidden_layers must be at most 1024, it is 2147483648"));
  CHECK(contains(refusal_of([](Config& c) { c.hidden_size = std::int64_t{1} << 40; }),
                 "hidden_size must be at most 16777216, it is 1099511627776"));
  CHECK(contains(refusal_of([](Config& c) { c.vocab_size = std::numeric_limits<std::int64_t>::max(); }),
                 "vocab_size must be at most"));
  CHECK(
      contains(refusal_of([](Config& c) { c.mini_batch_size = std::int64_t{1} << 40; }), "mini_batch_size"));
  CHECK(contains(refusal_of([](Config& c) { c.conv_kernel = std::int64_t{1} << 40; }), "conv_kernel"));
  CHECK(contains(refusal_of([](Config& c) { c.attention_window = std::int64_t{1} << 40; }),
                 "attention_window"));
  CHECK(contains(refusal_of([](Config& c) { c.attention_window = -2; }), "attention_window"));
  // Each extent by itself may be meant, all together not.
  const std::string all = refusal_of([](Config& c) { c.hidden_size = c.intermediate_size = 1 << 15; });
  CHECK_MESSAGE(
      contains(all, "hidden_size 32768, intermediate_size 32768 and num_hidden_layers 2 ask for 1.29e+10"),
      all);
  CHECK(contains(refusal_of_json(R"({"num_hidden_layers": 2147483648})"), "num_hidden_layers"));
  CHECK(contains(refusal_of_json(R"({"hidden_size": 1e308})"), "hidden_size"));
  // The largest published model of this family.
  CHECK_NOTHROW(Config{.vocab_size = 32000,
                       .hidden_size = 2048,
                       .intermediate_size = 5504,
                       .num_hidden_layers = 24,
                       .num_attention_heads = 32}
                    .check());
}

TEST_CASE("a configuration that asks for more than a file holds is refused before its model is traced") {
  const LanguageModelConfig config{.num_hidden_layers = 1000};
  const std::string why =
      message_of<ConfigError>([&] { config.check_against(500'000, "model.safetensors"); });
  CHECK(contains(why, "model.safetensors holds 500000 parameters"));
  CHECK(contains(why, "num_hidden_layers 1000"));
  CHECK_NOTHROW(LanguageModelConfig().check_against(500'000, ""));
}

TEST_CASE("deep nesting is no configuration, and what a field holds is shown cut") {
  CHECK(contains(refusal_of_json(std::string(1'000'000, '[')),
                 "has more than 16 objects and lists, one in the other"));
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  CHECK(contains(refusal_of_json("{\"hidden_size\": " + deep + "}"), "has more than 16 objects and lists"));
  CHECK(refusal_of_json("{\"hidden_size\": \"" + std::string(100'000, 'x') + "\"}").size() < 400);
  CHECK(contains(refusal_of_json(R"({"hidden_size": 64, "hidden_size": 32})"),
                 "config.json gives the key 'hidden_size' twice"));
  CHECK(contains(refusal_of_json(std::string("{}\0 and more", 11)), "has a zero byte"));
}
