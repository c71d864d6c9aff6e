#include "models/trainer.h"

#include <doctest/doctest.h>
#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/io/file.h"
#include "engine/io/safetensors.h"
#include "models/training_checkpoint.h"
#include "tests/models/training_testing.h"
#include "tests/temporary_folder.h"
#include "tests/testing.h"
#include "tests/thread_count.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

ByteCorpus small_corpus() {
  std::vector<std::uint8_t> text;
  for (int i = 0; i < 3000; ++i)
    text.push_back(static_cast<std::uint8_t>("abcde fgh\n"[(i * i / 7 + i) % 10]));
  return {text, {text.begin(), text.begin() + 600}};
}

TrainingOptions small_options(const std::string& layer = "linear") {
  TrainingOptions o = small_training(layer);
  o.batch = 2, o.context = 18, o.grains = 1;
  return o;
}

std::size_t bytes_in_use() {
  const auto info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

}  // namespace

TEST_CASE("a number of grains that no training has is damage of the file, which is named") {
  const auto grains = [](const std::string& training) {
    SafeTensors file;
    file.metadata["training"] = training;
    return grains_of_checkpoint(file, "run/checkpoint.safetensors");
  };
  CHECK(grains_of_checkpoint({}, "") == 1);  // of an earlier version
  CHECK(grains(R"({"batch": 8})") == 1);
  CHECK(grains(R"({"batch": 8, "grains": 4})") == 4);
  for (const char* wrong : {R"({"batch": 8, "grains": 0})", R"({"grains": 0})", R"({"grains": -1})",
                            R"({"batch": 8, "grains": 3})", R"({"grains": "two"})", R"({"grains": 1e99})"}) {
    const std::string said = message_of<IoError>([&] { grains(wrong); });
    CHECK_MESSAGE(contains(said, "run/checkpoint.safetensors: its header says"), said);
  }
}

TEST_CASE("a run that is gone on with keeps its grains, and settings of another run are named before them") {
  TrainingOptions o = small_options();
  o.batch = 4, o.grains = 4;
  SafeTensors file;
  file.metadata["training"] = o.to_json();
  o.grains = 1, o.steps = 7;  // nobody said how many, and there are more steps now
  CHECK(resumed_grains(file, o, "run") == 4);
  o.batch = 6;
  const std::string said = message_of<ConfigError>([&] { resumed_grains(file, o, "run"); });
  CHECK_MESSAGE(contains(said, "run was written with batch = 4, this run has 6"), said);
  CHECK_MESSAGE(!contains(said, "grains"), said);
}

TEST_CASE("a resumed training run is bit-identical to an uninterrupted one, and not to a cold start") {
  const ByteCorpus corpus = small_corpus();
  const TemporaryFolder folder;
  const std::string path = folder / "checkpoint.safetensors";
  Trainer whole(small_options(), corpus), first(small_options(), corpus), cold(small_options(), corpus);
  for (int i = 0; i < 8; ++i) whole.step();
  for (int i = 0; i < 3; ++i) first.step();
  first.save(path);
  Trainer second(small_options(), corpus);
  second.load(path);
  CHECK(second.steps_done() == 3);
  for (int i = 0; i < 5; ++i) second.step(), cold.step();
  const StateDict a = whole.parameters(), b = second.parameters(), c = cold.parameters();
  bool differs = false;
  for (const auto& parameter : a) {
    const std::string& name = parameter.first;
    CHECK_MESSAGE(parameter.second.same_bits(b.at(name)), name);
    differs = differs || !parameter.second.same_bits(c.at(name));
  }
  CHECK(differs);
}

TEST_CASE(
    "an inner rate's ramp goes through training steps, also after a stop, and must end before they do") {
  const ByteCorpus corpus = small_corpus();
  const TemporaryFolder folder;
  const std::string path = folder / "checkpoint.safetensors";
  TrainingOptions options = small_options();
  options.model.ttt_layer_type = kEndToEnd;
  options.model.ilr_init = 3, options.model.ilr_warmup_steps = 4;
  Trainer trainer(options, corpus), stopped(options, corpus);
  const auto loss_in = [&](double step, const StateDict& params, const Array& tokens) {
    const TracedModel model =
        trace_model(DType::f32, {tokens.spec()}, [&](ParamTable& table, const Tensors& in) {
          ttt::Stream stream;
          const Tensor now = step < 0 ? Tensor() : constant(step, DType::f32);
          return Tensors{mean(next_token_loss(options.model, Params(table), in[0], stream, 0, now))};
        });
    return model.function(model.bind({tokens}, {&params}))[0].item();
  };
  for (int n = 0; n < 6; ++n) {
    CAPTURE(n);
    const StateDict before = trainer.parameters();
    const Array batch = corpus.batch(Split::training, static_cast<std::uint64_t>(n), options.batch,
                                     options.context, options.seed);
    const double loss = trainer.step().loss;
    CHECK(loss == doctest::Approx(loss_in(n, before, batch)).epsilon(1e-6));
    // From the fourth step on it is the rate with which the model reads.
    if (n < 3) CHECK(std::abs(loss - loss_in(-1, before, batch)) > 1e-5);
    else CHECK(loss == doctest::Approx(loss_in(-1, before, batch)).epsilon(1e-6));
    if (n == 1) trainer.save(path);
  }
  stopped.load(path);
  for (int n = 2; n < 6; ++n) stopped.step();
  for (const auto& entry : trainer.parameters())
    CHECK_MESSAGE(stopped.parameters().at(entry.first).same_bits(entry.second), entry.first);

  TrainingOptions other = options;
  other.model.ilr_warmup_steps = 5;
  Trainer different(other, corpus);
  CHECK(contains(message_of<ConfigError>([&] { different.load(path); }),
                 "ilr_warmup_steps = 4, this run has 5"));
  other.model.ilr_warmup_steps = options.steps + 1;
  CHECK(contains(message_of<ConfigError>([&] { other.check(); }), "is longer than the training"));
}

TEST_CASE(
    "training from given weights begins with them and without moments, and refuses those of another model") {
  const ByteCorpus corpus = small_corpus();
  Trainer trained(small_options(), corpus), again(small_options(), corpus), cold(small_options(), corpus);
  const StateDict start = cold.parameters();
  for (int i = 0; i < 2; ++i) trained.step();
  again.start_from(trained.parameters());
  CHECK(again.steps_done() == 0);
  for (const auto& [name, value] : trained.parameters()) CHECK(again.parameters().at(name).same_bits(value));
  trained.start_from(start);
  CHECK(trained.step().loss == cold.step().loss);
  for (const auto& [name, value] : cold.parameters()) CHECK(trained.parameters().at(name).same_bits(value));
  StateDict missing = start;
  missing.erase("model.norm.weight");
  CHECK(contains(message_of<ConfigError>([&] { again.start_from(missing); }), "'model.norm.weight'"));
}

TEST_CASE("a checkpoint is not gone on with on other text") {
  const TemporaryFolder folder;
  const std::string path = folder / "checkpoint.safetensors";
  const auto text_of = [](Split split) {
    const ByteCorpus corpus = small_corpus();
    return std::vector<std::uint8_t>(corpus.bytes(split).begin(), corpus.bytes(split).end());
  };
  const auto training = text_of(Split::training), validation = text_of(Split::validation);
  Trainer(small_options(), small_corpus()).save(path);
  Trainer(small_options(), {training, validation}).load(path);
  auto changed = training, longer = validation, moved = training;
  changed[100] ^= 1;
  longer.push_back('a');
  moved.push_back(validation[0]);  // the same bytes in all, parted elsewhere
  const std::vector<std::uint8_t> rest(validation.begin() + 1, validation.end());
  for (const ByteCorpus& other :
       {ByteCorpus(changed, validation), ByteCorpus(training, longer), ByteCorpus(moved, rest)}) {
    Trainer trainer(small_options(), other);
    CHECK_THROWS_WITH_AS(trainer.load(path), doctest::Contains("other text"), ConfigError);
  }
}

TEST_CASE("clipping and weight decay act on a resumed run as on an uninterrupted one") {
  const ByteCorpus corpus = small_corpus();
  const TemporaryFolder folder;
  const std::string path = folder / "checkpoint.safetensors";
  // Parameters after six steps, with a resume after three or without.
  const auto trained = [&](double clip, double decay, bool resumed) {
    TrainingOptions o = small_options();
    o.lr = 1e-2, o.adamw.clip = clip, o.adamw.weight_decay = decay;
    Trainer first(o, corpus);
    for (int i = 0; i < 3; ++i) first.step();
    if (!resumed) {
      for (int i = 0; i < 3; ++i) first.step();
      return first.parameters();
    }
    first.save(path);
    Trainer second(o, corpus);
    second.load(path);
    for (int i = 0; i < 3; ++i) second.step();
    return second.parameters();
  };
  const auto same = [](const StateDict& a, const StateDict& b) {
    return std::ranges::all_of(a, [&](const auto& p) { return p.second.same_bits(b.at(p.first)); });
  };
  const StateDict usual = trained(1e9, 0, false);
  for (const bool clipped : {true, false}) {
    const double clip = clipped ? 1e-9 : 1e9, decay = clipped ? 0 : 0.5;
    INFO("clip ", clip, ", decay ", decay);
    const StateDict whole = trained(clip, decay, false);
    CHECK_FALSE(same(whole, usual));  // the setting does something
    CHECK(same(whole, trained(clip, decay, true)));
  }
}

TEST_CASE("a checkpoint that does not say beta1, beta2 and eps is one of their defaults") {
  const ByteCorpus corpus = small_corpus();
  const TemporaryFolder folder;
  Trainer(small_options(), corpus).save(folder / "now");
  SafeTensors earlier = read_safetensors(folder / "now");
  std::string& settings = earlier.metadata.at("training");
  const std::size_t from = settings.find(",\"beta1\"");
  REQUIRE(from != std::string::npos);
  settings = settings.substr(0, from) + "}";  // the last fields
  earlier.metadata.erase("start");
  write_safetensors(folder / "earlier", earlier);
  TrainingOptions o = small_options();
  Trainer(o, corpus).load(folder / "earlier");
  o.adamw.beta2 = 0.99;
  CHECK(contains(message_of<ConfigError>([&] { Trainer(o, corpus).load(folder / "earlier"); }),
                 "written with beta2 = nothing, this run has 0.99; resume"));
}

TEST_CASE(
    "what a checkpoint says of itself is believed: its format, its place in the data, how numbers were drawn") {
  const ByteCorpus corpus = small_corpus();
  const TemporaryFolder folder;
  Trainer trained(small_options(), corpus);
  trained.step();
  trained.save(folder / "now");
  const auto changed = [&](const std::string& key, const std::string& to) {
    SafeTensors file = read_safetensors(folder / "now");
    REQUIRE(file.metadata.contains(key));
    if (to.empty()) file.metadata.erase(key);
    else file.metadata[key] = to;
    write_safetensors(folder / "changed", file);
    Trainer again(small_options(), corpus);
    again.load(folder / "changed");
    CHECK(again.steps_done() == 1);
  };
  for (const char* key : {"format", "data_position", "rng"}) {
    changed(key, "");  // an earlier version did not say
    changed(key, read_safetensors(folder / "now").metadata.at(key));
  }
  CHECK(contains(message_of<IoError>([&] { changed("format", "a model of clay"); }), "'a model of clay'"));
  CHECK(contains(message_of<IoError>([&] { changed("data_position", "7"); }), "step 1 and data_position 7"));
  CHECK(contains(message_of<ConfigError>([&] { changed("rng", "dice"); }),
                 "drew its random numbers by 'dice'"));
}

TEST_CASE("a run that began with given weights is not gone on with from others") {
  const ByteCorpus corpus = small_corpus();
  const TemporaryFolder folder;
  TrainingOptions o = small_options();
  o.seed = 9;
  const StateDict given = Trainer(o, corpus).parameters();
  StateDict other = given;
  other.at("model.norm.weight") = Array::full(DType::f32, {16}, 2);
  Trainer from_given(small_options(), corpus), from_seed(small_options(), corpus);
  from_given.start_from(given);
  from_given.step();
  from_given.save(folder / "given");
  from_seed.save(folder / "seed");
  Trainer again(small_options(), corpus), wrong(small_options(), corpus),
      told_nothing(small_options(), corpus);
  again.start_from(given);
  again.load(folder / "given");
  CHECK(again.steps_done() == 1);
  wrong.start_from(other);
  for (const char* file : {"given", "seed"})
    CHECK(contains(message_of<ConfigError>([&] { wrong.load(folder / file); }),
                   "was not trained from the weights that this run starts from"));
  CHECK(wrong.steps_done() == 0);
  told_nothing.load(folder / "given");
  told_nothing.save(folder / "on");  // of the same start
  again.load(folder / "on");
  CHECK_THROWS_AS(wrong.load(folder / "on"), ConfigError);
}

TEST_CASE("the parameters that a trainer gives out are copies") {
  const ByteCorpus corpus = small_corpus();
  Trainer trainer(small_options(), corpus), untouched(small_options(), corpus);
  StateDict given = trainer.parameters();
  const StateDict kept = untouched.parameters();
  for (auto& [name, value] : given) std::memset(value.data(), 0, value.bytes());
  CHECK(trainer.step().loss == untouched.step().loss);
  const StateDict after = untouched.parameters();
  for (const auto& [name, value] : trainer.parameters()) CHECK(value.same_bits(after.at(name)));
  for (const auto& [name, value] : given)
    for (const double v : value.to_vector()) CHECK(v == 0);  // nor does a step write there
  bool moved = false;
  for (const auto& [name, value] : kept) moved = moved || !value.same_bits(after.at(name));
  CHECK(moved);
}

TEST_CASE("a trainer keeps the text that it was given") {
  const ByteCorpus alive = small_corpus();
  Trainer other(small_options(), alive);
  auto given = std::make_unique<ByteCorpus>(small_corpus());
  Trainer trainer(small_options(), *given);
  *given = ByteCorpus(std::vector<std::uint8_t>(4000, 'x'), std::vector<std::uint8_t>(400, 'x'));
  given.reset();
  CHECK(trainer.step().loss == other.step().loss);
}

TEST_CASE("the loss of a step is that of its batch, and the start is the seed's") {
  const ByteCorpus corpus = small_corpus();
  TrainingOptions o = small_options();
  const StateDict usual = Trainer(o, corpus).parameters();
  o.seed = 3, o.lr = 0.1;
  Trainer trainer(o, corpus);
  const StateDict seeded = trainer.parameters();
  CHECK(std::ranges::any_of(usual, [&](const auto& p) { return !p.second.same_bits(seeded.at(p.first)); }));
  for (std::uint64_t step = 0; step < 3; ++step) {
    const double before =
        trainer.validate(corpus.batch(Split::training, step, o.batch, o.context, o.seed)).loss;
    CHECK(trainer.step().loss == doctest::Approx(before).epsilon(1e-5));
  }
}

TEST_CASE("the first step moves a parameter by the learning rate, whatever its gradient") {
  TrainingOptions o = small_options();
  o.adamw.weight_decay = 0;
  Trainer trainer(o, small_corpus());
  const StateDict before = trainer.parameters();
  const double rate = trainer.step().rate;
  double most = 0;
  for (const auto& [name, value] : trainer.parameters())
    for (std::int64_t i = 0; i < value.size(); ++i)
      most = std::max(most, std::abs(value.at(i) - before.at(name).at(i)));
  CHECK(most / rate == doctest::Approx(1).epsilon(1e-3));
}

TEST_CASE("validation over many windows is the mean over their batches") {
  Trainer trainer(small_options(), small_corpus());
  const Array windows = trainer.validation_windows(6);
  REQUIRE(windows.shape() == Shape{6, 19});
  double sum = 0;
  for (std::size_t batch = 0; batch < 3; ++batch) {
    Array part(DType::i32, {2, 19});
    std::ranges::copy(windows.as<std::int32_t>().subspan(batch * 38, 38), part.as<std::int32_t>().begin());
    sum += trainer.validate(part).loss;
  }
  CHECK(trainer.validate(windows).loss == doctest::Approx(sum / 3).epsilon(1e-9));
}

TEST_CASE("training lowers the loss, and more so than any step could by chance") {
  const ByteCorpus corpus = small_corpus();
  TrainingOptions o = small_options();
  o.steps = 60, o.lr = 1e-2;
  Trainer trainer(o, corpus);
  const double before = trainer.step().loss;
  double after = 0;
  for (int i = 1; i < 60; ++i) after = trainer.step().loss;
  CHECK(before > 5);
  CHECK(after < 3);
}

TEST_CASE("live memory is constant over training steps") {
  const Threads one(1);  // another one may take its first share, and its memory, at any step
  const ByteCorpus corpus = small_corpus();
  TrainingOptions o = small_options();
  o.steps = 1000;
  Trainer trainer(o, corpus);
  for (int i = 0; i < 20; ++i) trainer.step();
  const std::size_t before = bytes_in_use();
  for (int i = 0; i < 400; ++i) trainer.step();
  // The allocator's own caches move by a few kilobytes; the smallest block lost in each step would make
  // 12,800 bytes.
  CHECK(bytes_in_use() < before + 8000);
}

TEST_CASE("a step that is not finite is refused and leaves the parameters as they were") {
  const ByteCorpus corpus = small_corpus();
  TrainingOptions o = small_options();
  o.lr = 1e30, o.steps = 50, o.warmup = 0;
  Trainer trainer(o, corpus);
  StateDict before;
  const auto train_until_it_fails = [&] {
    for (;;) {
      before = trainer.parameters();
      trainer.step();
    }
  };
  const TemporaryFolder folder;
  const std::string text = message_of<ValueError>(train_until_it_fails);
  CHECK(contains(text, "is not finite"));
  CHECK(contains(text, "Lower the learning rate"));
  for (const auto& [name, value] : trainer.parameters()) CHECK(value.same_bits(before.at(name)));
  const std::int64_t steps = trainer.steps_done();
  trainer.save(folder / "first");
  CHECK(message_of<ValueError>([&] { trainer.step(); }) == text);  // it fails again as it did
  CHECK(trainer.steps_done() == steps);
  CHECK(trainer.why_not_finite());
  trainer.save(folder / "again");
  CHECK(read_file(folder / "first") == read_file(folder / "again"));  // the moments too
}

TEST_CASE("a step whose loss is not finite, but whose gradient is, is refused and changes nothing") {
  // All bytes of the text are infinitely less likely than one that it does not have.
  const LogitsFn model = [](const Params& params, Tensor bytes, ttt::Stream&) {
    Array shift = Array::full(DType::f32, {256}, -3e38);
    shift.as<float>()[0] = 3e38F;
    return gather(params("table", {256, 256}, Init::normal(1)), bytes) + constant(shift);
  };
  Trainer trainer(small_options(), small_corpus(), model);
  const StateDict before = trainer.parameters();
  const std::string text = message_of<ValueError>([&] { trainer.step(); });
  CHECK(contains(text, "the loss is not finite (loss inf, gradient norm 0."));
  CHECK(trainer.parameters().at("table").same_bits(before.at("table")));
  CHECK(trainer.steps_done() == 0);
}

TEST_CASE("steps write over no array of anyone else's") {
  const ByteCorpus corpus = small_corpus();
  Trainer trainer(small_options(), corpus);
  const StateDict given = Trainer(small_options(), corpus).parameters();
  StateDict before;
  for (const auto& [name, value] : given) before.emplace(name, value.clone());
  trainer.start_from(given);
  trainer.step();
  for (const auto& [name, value] : given) CHECK(value.same_bits(before.at(name)));
  CHECK_FALSE(trainer.parameters().at("model.norm.weight").same_bits(before.at("model.norm.weight")));
}

TEST_CASE("a checkpoint of other settings, of another kind, or cut short is refused and changes nothing") {
  const ByteCorpus corpus = small_corpus();
  const TemporaryFolder folder;
  const std::string path = folder / "checkpoint.safetensors";
  Trainer trainer(small_options(), corpus);
  trainer.step();
  trainer.save(path);
  TrainingOptions other = small_options();
  other.seed = 5;
  Trainer seeded(other, corpus);
  CHECK_THROWS_WITH_AS(seeded.load(path), doctest::Contains("seed = 0, this run has 5"), ConfigError);
  other.lr = 1, other.adamw = {.beta1 = 0.5, .beta2 = 0.25, .eps = 1e-3};
  const std::string all = message_of<ConfigError>([&] { Trainer(other, corpus).load(path); });
  for (const char* each :
       {"lr = 0.003, this run has 1.0", "seed = 0, this run has 5", "beta1 = 0.9, this run has 0.5",
        "beta2 = 0.95, this run has 0.25", "eps = 1e-08, this run has 0.001"})
    CHECK_MESSAGE(contains(all, each), all);
  CHECK_FALSE(contains(all, "warmup"));
  Trainer mlp(small_options("mlp"), corpus);
  const StateDict before = mlp.parameters();
  CHECK_THROWS_WITH_AS(mlp.load(path), doctest::Contains("ttt_layer_type"), ConfigError);
  write_safetensors(folder / "plain", {mlp.parameters(), {}});
  CHECK_THROWS_WITH_AS(mlp.load(folder / "plain"), doctest::Contains("not a training checkpoint"), IoError);
  write_file_atomically(folder / "cut", read_file(path).substr(0, 4000));
  CHECK_THROWS_AS(mlp.load(folder / "cut"), IoError);
  CHECK(mlp.steps_done() == 0);
  for (const auto& [name, value] : mlp.parameters()) CHECK(value.same_bits(before.at(name)));
}

TEST_CASE("validation reports every position of every window, and the inner losses of every learner") {
  const ByteCorpus corpus = small_corpus();
  Trainer trainer(small_options(), corpus);
  const Array windows = trainer.validation_windows(7);
  CHECK(windows.shape() == Shape{6, 19});  // whole batches of two
  const Validation v = trainer.validate(windows);
  CHECK(v.loss_by_position.size() == 18);
  CHECK(v.loss == doctest::Approx(std::log(256)).epsilon(0.05));
  REQUIRE(v.inner.size() == 1);
  for (std::size_t t = 0; t < 18; ++t)
    CHECK(v.inner[0].after[t] < v.inner[0].before[t]);  // a step lowers its own token's loss
  CHECK(v.inner[0].before[0] == doctest::Approx(v.inner[0].initial[0]));
  Trainer baseline(small_options("attention"), corpus);
  CHECK(baseline.validate(windows).inner.empty());
}

TEST_CASE("settings that make no sense are refused by name") {
  const ByteCorpus corpus = small_corpus();
  const auto refused = [&](auto change, const char* word) {
    TrainingOptions o = small_options();
    change(o);
    CHECK_THROWS_WITH_AS(Trainer(o, corpus), doctest::Contains(word), ConfigError);
  };
  refused([](TrainingOptions& o) { o.context = 1; }, "context");
  refused([](TrainingOptions& o) { o.steps = 0; }, "steps");
  refused([](TrainingOptions& o) { o.batch = -1; }, "batch must be at least 1, it is -1");
  refused([](TrainingOptions& o) { o.warmup = -1; }, "warmup must be at least 0");
  refused([](TrainingOptions& o) { o.checkpoint_every = -1; }, "checkpoint_every must be at least 0");
  const double nan = std::nan(""), infinity = HUGE_VAL;
  for (const double wrong : {0.0, -1.0, nan, infinity}) {
    const std::string it_is = fmt::format("must be positive and finite, it is {}", wrong),
                      in_f32 = fmt::format("must be positive and finite in f32, it is {}", wrong);
    refused([&](TrainingOptions& o) { o.lr = wrong; }, ("lr, the learning rate, " + in_f32).c_str());
    refused([&](TrainingOptions& o) { o.adamw.eps = wrong; }, ("eps " + it_is).c_str());
    refused([&](TrainingOptions& o) { o.adamw.clip = wrong; }, "clip must be positive and finite");
  }
  for (const double wrong : {1.0, 2.0, -0.1, nan, infinity}) {
    refused([&](TrainingOptions& o) { o.adamw.beta1 = wrong; }, "beta1 must be at least 0 and below 1");
    refused([&](TrainingOptions& o) { o.adamw.beta2 = wrong; }, "beta2 must be at least 0 and below 1");
  }
  for (const double wrong : {-1.0, nan, infinity})
    refused([&](TrainingOptions& o) { o.adamw.weight_decay = wrong; }, "weight_decay must be 0 or positive");
  refused([](TrainingOptions& o) { o.model.vocab_size = 100; }, "vocab_size");
  refused([](TrainingOptions& o) { o.model.num_attention_heads = 3; }, "num_attention_heads");
}
