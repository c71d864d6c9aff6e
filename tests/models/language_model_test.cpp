// Promises of the language model: published names, causality, and training that a checkpoint schedule does
// not change.
#include "models/language_model.h"

#include <set>

#include "engine/io/safetensors.h"
#include "tests/models/model_testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

std::set<std::string> names_of(const LanguageModelConfig& config) {
  std::set<std::string> out;
  for (const ParamSpec& p : logits_model(config, DType::f32, i32({1, 4})).params) out.insert(p.name);
  return out;
}

// The published names of one layer's parameters, without "model.layers.<i>.".
std::set<std::string> layer_names(const std::string& layer, Backbone backbone) {
  const std::string own = "seq_modeling_block.";
  std::set<std::string> out{"seq_norm.weight",     "ffn_norm.weight",      "mlp.gate_proj.weight",
                            "mlp.up_proj.weight",  "mlp.down_proj.weight", own + "q_proj.weight",
                            own + "v_proj.weight", own + "o_proj.weight"};
  const auto add = [&](const std::string& prefix, std::initializer_list<const char*> names) {
    for (const std::string name : names) out.insert(prefix + name);
  };
  if (layer != "attention")
    add(own, {"W1", "b1", "ttt_norm_weight", "ttt_norm_bias", "learnable_ttt_lr_weight",
              "learnable_ttt_lr_bias", "learnable_token_idx", "post_norm.weight", "post_norm.bias"});
  if (layer == "mlp") add(own, {"W2", "b2"});
  if (backbone == Backbone::transformer) {
    add(own, {"k_proj.weight"});
  } else {
    add(own, {"g_proj.weight", "conv_q.weight", "conv_q.bias", "conv_k.weight", "conv_k.bias"});
    add("conv.", {"norm.weight", "conv.weight", "conv.bias"});
  }
  return out;
}

}  // namespace

TEST_CASE("parameters have exactly the names of the published state dict") {
  for (const char* layer : {"linear", "mlp", "attention"})
    for (const Backbone backbone : {Backbone::transformer, Backbone::mamba}) {
      std::set<std::string> expected{"model.embed_tokens.weight", "model.norm.weight"};
      for (int i = 0; i < 2; ++i)
        for (const std::string& name : layer_names(layer, backbone))
          expected.insert(fmt::format("model.layers.{}.{}", i, name));
      CHECK(names_of(small_model(layer, backbone)) == expected);
    }
}

TEST_CASE("a model of LaCT has the window of attention that is its default") {
  const auto logits = [](const char* layer, std::int64_t window) {
    LanguageModelConfig config = small_model(layer);
    config.attention_window = window;
    const TracedModel model = logits_model(config, DType::f64, i32({1, 10}));
    const StateDict params = initial_parameters(model.params, DType::f64, 1);
    return model.function(model.bind({random_tokens(1, 10, config.vocab_size)}, {&params}));
  };
  const Arrays published = logits("lact", kAsPublished);
  CHECK(same_bits(published, logits("lact", 4)));
  CHECK_FALSE(same_bits(published, logits("lact", 0)));
  CHECK(same_bits(logits("linear", kAsPublished), logits("linear", 0)));
}

TEST_CASE(
    "linear attention is rotated by places in a transformer, and not where convolutions stand before it") {
  const auto logits = [](Backbone backbone, bool rotary) {
    const LanguageModelConfig config = small_model("linear-attention", backbone);
    ttt::System system = learner_system("linear-attention");
    system.rotary_in_sequence = rotary;
    const TracedModel model =
        trace_model(DType::f64, {i32({1, 10})}, [&](ParamTable& table, const Tensors& in) {
          ttt::Stream stream;
          return Tensors{LanguageModel(config, Params(table), {.system = system}).logits(in[0], stream)};
        });
    const StateDict params = initial_parameters(model.params, DType::f64, 1);
    return model.function(model.bind({random_tokens(1, 10, config.vocab_size)}, {&params}));
  };
  CHECK(learner_system("linear-attention").rotary_in_sequence);
  CHECK_FALSE(same_bits(logits(Backbone::transformer, true), logits(Backbone::transformer, false)));
  CHECK(same_bits(logits(Backbone::mamba, true), logits(Backbone::mamba, false)));
}

TEST_CASE("names and shapes are those in the golden files") {
  for (const std::string name :
       {"ttt_linear_transformer", "ttt_linear_mamba", "ttt_mlp_transformer", "ttt_mlp_mamba"}) {
    CAPTURE(name);
    const SafeTensors file =
        read_safetensors(std::string(NESTGRAD_TEST_DATA) + "/golden/" + name + ".safetensors");
    std::map<std::string, Shape> expected, found;
    for (const auto& [key, value] : file.tensors)
      if (key.starts_with("param.")) expected.emplace(key.substr(6), value.shape());
    const auto config = LanguageModelConfig::from_json(file.metadata.at("config"), name);
    for (const ParamSpec& p : logits_model(config, DType::f32, i32({1, 4})).params)
      found.emplace(p.name, p.shape);
    CHECK(found == expected);
  }
}

TEST_CASE("an output of its own is one more parameter, and another model") {
  LanguageModelConfig config = small_model("linear");
  std::set<std::string> tied = names_of(config);
  config.tie_word_embeddings = false;
  tied.insert("lm_head.weight");
  CHECK(names_of(config) == tied);
}

TEST_CASE("the number of parameters is the one counted by hand") {
  const auto count_of = [](const LanguageModelConfig& config) {
    std::int64_t n = 0;
    for (const ParamSpec& p : logits_model(config, DType::f32, i32({1, 4})).params) n += numel(p.shape);
    return n;
  };
  // vocabulary 13, width 8, hidden 12, two layers, two heads of 4, mini-batch 4
  const std::int64_t embedding = 13 * 8, swiglu = 3 * 8 * 12, norms = 2 * 8, square = 8 * 8;
  const std::int64_t fast = 2 * (4 * 4 + 4) + 2 * 2 * 4, rates = 2 * 8 + 2 + 4, post_norm = 2 * 8;
  CHECK(count_of(small_model("linear")) ==
        embedding + 8 + 2 * (swiglu + norms + 4 * square + fast + rates + post_norm));
  const std::int64_t fast_mlp = 2 * (4 * 16 + 16 + 16 * 4 + 4) + 2 * 2 * 4;
  CHECK(count_of(small_model("mlp")) ==
        embedding + 8 + 2 * (swiglu + norms + 4 * square + fast_mlp + rates + post_norm));
  CHECK(count_of(small_model("attention")) == embedding + 8 + 2 * (swiglu + norms + 4 * square));
  const std::int64_t convolution = 8 * 4 + 8;
  CHECK(count_of(small_model("linear", Backbone::mamba)) ==
        embedding + 8 +
            2 * (swiglu + norms + 4 * square + 2 * convolution + 8 + convolution + fast + rates + post_norm));
}

TEST_CASE("starting values depend on seed and name alone, and are the same numbers in both types") {
  const TracedModel model = logits_model(small_model("mlp", Backbone::mamba), DType::f64, i32({1, 4}));
  const StateDict a = initial_parameters(model.params, DType::f64, 1),
                  b = initial_parameters(model.params, DType::f64, 1);
  const StateDict other = initial_parameters(model.params, DType::f64, 2),
                  single = initial_parameters(model.params, DType::f32, 1);
  for (const ParamSpec& p : model.params) {
    CAPTURE(p.name);
    CHECK(a.at(p.name).same_bits(b.at(p.name)));
    CHECK(a.at(p.name).cast(DType::f32).same_bits(single.at(p.name)));
    CHECK(a.at(p.name).same_bits(other.at(p.name)) == (p.init.kind == Init::Kind::constant));
  }
}

TEST_CASE("a parameter that is asked for in two shapes is a ConfigError, in one shape it is one parameter") {
  Graph graph;
  ParamTable table(graph, DType::f32);
  const Params params = Params(table).at("a");
  CHECK(params("w", {2}) == params("w", {2}));
  CHECK(contains(message_of<ConfigError>([&] { params("w", {3}); }), "'a.w' is asked for as [2] and as [3]"));
}

TEST_CASE("a token changes no logits before it, to the last bit") {
  constexpr std::int64_t time = 10;
  for (const LanguageModelConfig& config : small_models()) {
    CAPTURE(name_of(config));
    const TracedModel model = logits_model(config, DType::f64, i32({1, time}));
    const StateDict params = random_parameters(model, DType::f64);
    const Array tokens = random_tokens(1, time, config.vocab_size);
    const Array before = model.function(model.bind({tokens}, {&params}))[0];
    for (std::int64_t t = 0; t < time; ++t) {
      Array changed = tokens.clone();
      std::int32_t& id = changed.as<std::int32_t>()[static_cast<std::size_t>(t)];
      id = static_cast<std::int32_t>((id + 1) % config.vocab_size);
      const Array after = model.function(model.bind({changed}, {&params}))[0];
      for (std::int64_t read = 0; read < time; ++read) {
        const auto from = static_cast<std::size_t>(read * config.vocab_size),
                   row = static_cast<std::size_t>(config.vocab_size);
        CHECK(std::ranges::equal(before.as<double>().subspan(from, row),
                                 after.as<double>().subspan(from, row)) == (read < t));
      }
    }
  }
}

TEST_CASE("the loss is that of the logits, one token ahead") {
  const LanguageModelConfig config = small_model("linear");
  const TracedModel model = trace_model(DType::f64, {i32({2, 6})}, [&](ParamTable& table, const Tensors& in) {
    ttt::Stream stream;
    const Tensor loss = next_token_loss(config, Params(table), in[0], stream);
    ttt::Stream again;
    return Tensors{loss, LanguageModel(config, Params(table)).logits(slice(in[0], 1, 0, 5), again)};
  });
  const StateDict params = random_parameters(model, DType::f64);
  const Array tokens = random_tokens(2, 6, config.vocab_size);
  const Arrays out = model.function(model.bind({tokens}, {&params}));
  REQUIRE(out[0].shape() == Shape{2, 5});
  for (std::int64_t i = 0; i < 10; ++i) {
    double total = 0;
    for (std::int64_t c = 0; c < 13; ++c) total += std::exp(out[1].at(i * 13 + c));
    const auto label = static_cast<std::int64_t>(tokens.at(i / 5 * 6 + i % 5 + 1));
    CHECK(out[0].at(i) == doctest::Approx(std::log(total) - out[1].at(i * 13 + label)).epsilon(1e-12));
  }
}

TEST_CASE("losses of the inner loop can be watched, and watching changes nothing") {
  for (const char* layer : {"linear", "mlp"}) {
    const LanguageModelConfig config = small_model(layer);
    const auto run = [&](bool watch) {
      std::vector<std::string> names;
      const TracedModel model =
          trace_model(DType::f64, {i32({2, 10})}, [&](ParamTable& table, const Tensors& in) {
            ttt::Stream stream;
            stream.track_inner_loss = watch;
            Tensors out{LanguageModel(config, Params(table)).logits(in[0], stream)};
            for (const auto& [name, value] : stream.taps()) {
              if (!contains(name, "inner_loss")) continue;
              names.push_back(name);
              out.push_back(value);
            }
            return out;
          });
      const StateDict params = random_parameters(model, DType::f64);
      Arrays out = model.function(model.bind({random_tokens(2, 10, 13)}, {&params}));
      CHECK(names.size() == (watch ? 6 : 0));
      for (std::size_t i = 1; i < out.size(); ++i)
        CHECK(out[i].shape() == Shape{2, 2, 10});  // batch, heads, time
      return out;
    };
    CHECK(run(true)[0].same_bits(run(false)[0]));
  }
}

TEST_CASE("checkpointing through time changes no bit of loss and gradients") {
  for (const char* layer : {"linear", "mlp"})
    for (const Backbone backbone : {Backbone::transformer, Backbone::mamba}) {
      const LanguageModelConfig config = small_model(layer, backbone);
      const Spec tokens = i32({2, 23});  // five mini-batches and a part of one
      const TracedModel stored = training_model(config, DType::f32, tokens);
      const StateDict params = random_parameters(stored, DType::f32);
      const Arrays in = stored.bind({random_tokens(2, 23, config.vocab_size)}, {&params}),
                   expected = stored.function(in);
      for (int every : {1, 2, 3})
        CHECK(same_bits(training_model(config, DType::f32, tokens, every).function(in), expected));
    }
}

TEST_CASE("plain gradient descent in f32 learns a tiny text, with every layer type") {
  constexpr std::int64_t time = 16;
  Array tokens(DType::i32, {1, time + 1});
  for (std::size_t t = 0; t < tokens.as<std::int32_t>().size(); ++t)
    tokens.as<std::int32_t>()[t] = static_cast<std::int32_t>(t * t % 7);
  for (const LanguageModelConfig& config : small_models()) {
    CAPTURE(name_of(config));
    const TracedModel model = training_model(config, DType::f32, tokens.spec());
    StateDict params = initial_parameters(model.params, DType::f32, 1);
    double first = 0, last = 0;
    for (int step = 0; step < 60; ++step) {
      const Arrays out = model.function(model.bind({tokens}, {&params}));
      last = out[0].item();
      if (step == 0) first = last;
      for (std::size_t i = 0; i < model.params.size(); ++i) {
        Array& p = params.at(model.params[i].name);
        for (std::size_t j = 0; j < p.as<float>().size(); ++j)
          p.as<float>()[j] -= 0.2F * out[i + 1].as<float>()[j];  // small enough not to be chaotic
      }
    }
    CHECK(first == doctest::Approx(std::log(13.0)).epsilon(0.05));
    CHECK(last < 0.7 * first);
  }
}
