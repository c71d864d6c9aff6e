// The promise: a Trainer and a Decoder take any function from tokens to logits, a System or a Task of one's own; and
// parameters that the loss does not depend on are named and left alone.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "models/sample.h"
#include "models/trainer.h"
#include "tests/models/model_testing.h"
#include "tests/temporary_folder.h"
#include "ttt/claim.h"
#include "ttt/learners/catalogue.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

ByteCorpus text() {
  std::vector<std::uint8_t> bytes;
  for (int i = 0; i < 3000; ++i) bytes.push_back(static_cast<std::uint8_t>("abcdefgh\n"[i % 9]));
  return {bytes, {bytes.begin(), bytes.begin() + 600}};
}

TrainingOptions short_run() {
  TrainingOptions o;
  o.steps = 60, o.batch = 2, o.context = 16, o.warmup = 2, o.lr = 0.05;
  return o;
}

LanguageModelConfig narrow(const std::string& layer = "linear") {
  return {.hidden_size = 16,
          .intermediate_size = 32,
          .num_hidden_layers = 1,
          .num_attention_heads = 2,
          .ttt_layer_type = layer,
          .mini_batch_size = 4};
}

// The byte before decides, with the one before that: a state that a decoder has to carry.
Tensor trigram(const Params& params, Tensor tokens, ttt::Stream& stream) {
  const Tensor rows = gather(params("table", {256, 8}), tokens),
               taps = params("taps", {8, 1, 2}, Init::normal(0.5));
  const Tensor seen = conv1d(stream.with_history("rows", rows, 1), taps, params("bias", {8}, Init::zeros()));
  return matmul(seen, params("out", {8, 256}));
}

// The learner's loss asks nothing of its values.
ttt::System valueless() {
  ttt::System out = ttt::delta_net();
  out.name = "valueless";
  out.learner = [](const Params& p, const ttt::SystemSizes& s) {
    return std::make_unique<ttt::Composed>(
        ttt::linear(p, {.heads = s.heads, .in = s.dim, .out = s.dim}),
        ttt::InnerLoss{"|f(k)|^2", [](Tensor f, Tensor) { return sum(square(f), {-1}, kKeep); }});
  };
  return out;
}

std::vector<Array> whole(const LogitsFn& model, const StateDict& params, const Array& tokens) {
  const TracedModel traced =
      trace_model(DType::f32, {tokens.spec()}, [&](ParamTable& table, const Tensors& in) {
        ttt::Stream stream;
        return Tensors{model(Params(table), in[0], stream)};
      });
  return traced.function(traced.bind({tokens}, {&params}));
}

double decoding_error(const LogitsFn& model, const StateDict& params) {
  const Array tokens = random_tokens(1, 9, 256);
  const Array expected = whole(model, params, tokens)[0];
  Decoder decoder(model, params, DType::f32, 1);
  double worst = 0;
  for (std::int64_t t = 0; t < 9; ++t) {
    const Array logits = decoder.step(Array::of({tokens.at(t)}, {1}, DType::i32));
    for (std::int64_t i = 0; i < 256; ++i)
      worst = worse(worst, std::abs(logits.at(i) - expected.at(t * 256 + i)));
  }
  return worst;
}

}  // namespace

TEST_CASE("a function of one's own is trained, saved, resumed and decoded") {
  const TemporaryFolder folder;
  Trainer trainer(short_run(), text(), trigram);
  const double first = trainer.step().loss;
  double last = first;
  while (trainer.steps_done() < 30) last = trainer.step().loss;
  trainer.save(folder / "own.safetensors");
  Trainer resumed(short_run(), text(), trigram);
  resumed.load(folder / "own.safetensors");
  while (trainer.steps_done() < 60) last = trainer.step().loss, resumed.step();
  CHECK(last < 0.5 * first);
  CHECK(trainer.unused_parameters().empty());
  for (const auto& [name, value] : trainer.parameters())
    CHECK(same_bits({value}, {resumed.parameters().at(name)}));
  CHECK(trainer.validate(trainer.validation_windows(4)).loss < first);
  CHECK(decoding_error(trigram, trainer.parameters()) < 1e-5);
  check_decoding(trigram);
  const StateDict params = trainer.parameters();
  CHECK(sample_text(trigram, params, "abc", 12, 0, 0) == "defgh\nabcdef");
  std::string seen;
  const std::string drawn = sample_text(trigram, params, "abc", 9, 0.5, 3, [&](char c) { seen += c; });
  CHECK(drawn.size() == 9);
  CHECK(seen == drawn);
  // Its checkpoint is none of a LanguageModel.
  TrainingOptions other = short_run();
  other.model = narrow();
  Trainer published(other, text());
  CHECK_THROWS_AS(published.load(folder / "own.safetensors"), ConfigError);
}
TEST_CASE("a System of one's own is the layer of a language model, whatever ttt_layer_type says") {
  const LogitsFn by_name = language_model(narrow("delta-net")),
                 given = language_model(narrow("linear"), {.system = ttt::delta_net()});
  Trainer a(short_run(), text(), by_name), b(short_run(), text(), given);
  for (int i = 0; i < 3; ++i) CHECK(a.step().loss == b.step().loss);
  CHECK(decoding_error(given, b.parameters()) < 1e-4);
  CHECK(!b.validate(b.validation_windows(2)).inner.empty());
}
TEST_CASE("a Task of one's own makes the views of every layer") {
  std::vector<std::string> layers;
  const LanguageModelConfig config = narrow("delta-net");
  const LogitsFn convolved =
      language_model(config, {.task = [&](const Params& params, std::int64_t width, const std::string& name) {
                       layers.push_back(name);
                       return std::make_unique<ttt::SharedQkViews>(params, width, 4, name);
                     }});
  LanguageModelConfig same = config;
  same.share_qk = true;
  Trainer a(short_run(), text(), convolved), b(short_run(), text(), language_model(same));
  CHECK(layers.front() == "layers.0.seq_modeling_block");
  for (int i = 0; i < 3; ++i) CHECK(a.step().loss == b.step().loss);
}
TEST_CASE("a learner that ignores its values is trained; what it does not use is named and stays") {
  const LogitsFn model = language_model(narrow(), {.system = valueless()});
  TrainingOptions options = short_run();
  Trainer trainer(options, text(), model);
  const std::string unused = "model.layers.0.seq_modeling_block.v_proj.weight";
  CHECK(trainer.unused_parameters() == std::vector<std::string>{unused});
  const StateDict before = trainer.parameters();
  for (int i = 0; i < 3; ++i) trainer.step();
  for (const auto& [name, value] : trainer.parameters())
    CHECK(same_bits({value}, {before.at(name)}) == (name == unused));
}
TEST_CASE("text of a function and of its configuration is the same text; wrong requests are refused") {
  const LanguageModelConfig config = narrow("attention");
  TrainingOptions options = short_run();
  options.model = config;
  const StateDict params = Trainer(options, text()).parameters();
  const LogitsFn model = language_model(config, {.attention_capacity = 23});
  CHECK(sample_text(model, params, "abc", 20, 1, 4) == sample_text(config, params, "abc", 20, 1, 4));
  CHECK_THROWS_AS(sample_text(model, params, "abc", 22, 1, 4), ConfigError);  // more than it has room for
  const auto refused = [&](const std::string& prompt, std::int64_t bytes, double temperature) {
    return message_of<ConfigError>([&] { sample_text(model, params, prompt, bytes, temperature, 4); });
  };
  CHECK(contains(refused("", 2, 1), "the prompt must not be empty"));
  CHECK(contains(refused("a", -1, 1), "-1 bytes"));
  for (const double wrong : {-0.5, std::nan(""), HUGE_VAL})
    CHECK(contains(refused("a", 2, wrong), fmt::format("0 or positive, and finite; it is {}", wrong)));
  const LogitsFn narrow_vocabulary = [](const Params& p, Tensor tokens, ttt::Stream&) {
    return gather(p("table", {100, 100}), tokens);
  };
  const StateDict table{{"table", Array::zeros(DType::f32, {100, 100})}};
  CHECK(contains(message_of<ConfigError>([&] { sample_text(narrow_vocabulary, table, "a", 2, 0, 0); }),
                 "the tokenizer has 256 tokens, the model (vocab_size) 100"));
}
TEST_CASE("a checkpoint of a function that has other parameters by now is refused by their names") {
  const TemporaryFolder folder;
  const std::string path = folder / "own.safetensors";
  Trainer(short_run(), text(), trigram).save(path);
  const LogitsFn fewer = [](const Params& p, Tensor tokens, ttt::Stream&) {
    return matmul(gather(p("table", {256, 8}), tokens), p("out", {8, 256}));
  };
  const LogitsFn renamed = [](const Params& p, Tensor tokens, ttt::Stream& stream) {
    const Tensor rows = stream.with_history("rows", gather(p("table", {256, 8}), tokens), 1);
    const Tensor seen = conv1d(rows, p("taps", {8, 1, 2}), p("biases", {8}, Init::zeros()));
    return matmul(seen, p("out", {8, 256}));
  };
  Trainer a(short_run(), text(), fewer), b(short_run(), text(), renamed);
  const StateDict before = b.parameters();
  CHECK(contains(message_of<ConfigError>([&] { a.load(path); }),
                 "it holds 'bias' [8] and 'taps' [8,1,2], which the model has no place for"));
  const std::string text_of_b = message_of<ConfigError>([&] { b.load(path); });
  CHECK(contains(text_of_b, "it lacks the parameter 'biases' [8]"));
  CHECK(contains(text_of_b, "is 'bias' meant for 'biases'?"));
  CHECK(b.steps_done() == 0);
  for (const auto& [name, value] : b.parameters()) CHECK(value.same_bits(before.at(name)));
}
TEST_CASE("wrong use: a model of no bytes, and one that has nothing to learn") {
  const LogitsFn narrow_vocabulary = [](const Params& p, Tensor tokens, ttt::Stream&) {
    return gather(p("table", {256, 100}), tokens);
  };
  CHECK(contains(message_of<ShapeError>([&] { Trainer(short_run(), text(), narrow_vocabulary); }),
                 "they must be [2,16,256]"));
  const LogitsFn constants = [](const Params& p, Tensor tokens, ttt::Stream&) {
    return stop_gradient(gather(p("table", {256, 256}), tokens));
  };
  CHECK(contains(message_of<ConfigError>([&] { Trainer(short_run(), text(), constants); }),
                 "depends on none of the model's parameters"));
}
TEST_CASE("wrong use: empty functions, names that are taken, and windows of another shape") {
  CHECK(
      contains(message_of<ConfigError>([] { Trainer(short_run(), text(), LogitsFn()); }), "empty function"));
  CHECK(contains(message_of<ConfigError>([] { Decoder(LogitsFn(), {}, DType::f32, 1); }), "empty function"));
  const auto named = [](const std::string& parameter, const std::string& state) -> LogitsFn {
    return [=](const Params& p, Tensor tokens, ttt::Stream& stream) {
      Tensor out = gather(p(parameter, {256, 256}), tokens);
      if (!stream.stepping()) return out;
      const Tensor before = stream.state(state, zeros(DType::f32, {256, 256}));
      stream.carry(state, before + 1.0);
      return out;
    };
  };
  CHECK(contains(message_of<ConfigError>([&] { Trainer(short_run(), text(), named("adamw.m.t", "s")); }),
                 "as the optimiser's own numbers are"));
  const StateDict table{{"t", Array::zeros(DType::f32, {256, 256})}};
  CHECK(contains(message_of<ConfigError>([&] { Decoder(named("t", "t"), table, DType::f32, 1); }),
                 "'t' is a state of the stream and also a parameter"));
  CHECK(contains(message_of<ConfigError>([&] { Decoder(named("t", "in0"), table, DType::f32, 1); }),
                 "'in0' is a state of the stream"));
  const Trainer trainer(short_run(), text(), named("t", "s"));
  for (const Array& windows : {Array::zeros(DType::i32, {0, 17}), Array::zeros(DType::i32, {}),
                               Array::zeros(DType::i32, {2, 5}), Array::zeros(DType::f32, {2, 17})})
    CHECK(contains(message_of<ShapeError>([&] { trainer.validate(windows); }),
                   "they must be i32 [windows, 17]"));
  const LogitsFn without_task = language_model(
      narrow(),
      {.task = [](const Params&, std::int64_t, const std::string&) { return std::unique_ptr<ttt::Task>(); }});
  CHECK(
      contains(message_of<ConfigError>([&] { Trainer(short_run(), text(), without_task); }), "made no Task"));
}
