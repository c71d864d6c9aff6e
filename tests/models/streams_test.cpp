// The promise: a stream's numbers are, bit for bit, those of a Decoder that reads it alone, whoever joins, leaves and comes
// back meanwhile, and however many threads there are.
#include "models/streams.h"

#include <fstream>

#include "engine/io/safetensors.h"
#include "tests/models/model_testing.h"
#include "tests/temporary_folder.h"
#include "tests/thread_count.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

constexpr std::int64_t kTokens = 19;  // of a stream, at most: four chunks and a part of one

StateDict params_of(const LanguageModelConfig& config, DType dtype) {
  return random_parameters(logits_model(config, dtype, i32({1, 3})), dtype);
}

std::int32_t token_of(std::int64_t stream, std::int64_t position, std::int64_t vocab) {
  return static_cast<std::int32_t>(random_below(static_cast<std::uint32_t>(vocab), 11,
                                                static_cast<std::uint64_t>(stream),
                                                static_cast<std::uint64_t>(position)));
}

// Logits of each stream, each token, read alone.
class Alone {
 public:
  Alone(const LanguageModelConfig& config, const StateDict& params, DType dtype, ttt::FormChoice form)
      : vocab_(config.vocab_size), decoder_(config, params, dtype, 1, kTokens, form) {}
  const Array& logits(std::int64_t stream, std::int64_t position) {
    Arrays& rows = logits_[stream];
    if (rows.empty()) {
      decoder_.reset();
      for (std::int64_t t = 0; t < kTokens; ++t)
        rows.push_back(
            decoder_.step(Array::of({static_cast<double>(token_of(stream, t, vocab_))}, {1}, DType::i32)));
    }
    return rows.at(static_cast<std::size_t>(position));
  }

 private:
  std::int64_t vocab_;
  Decoder decoder_;
  std::map<std::int64_t, Arrays> logits_;
};

// Reads one token of each stream; the first stream whose logits are not those that it has alone, or -1. name: of each
// stream here, the one of its text.
std::int64_t wrong_in_step(Streams& streams, const std::map<Streams::Id, std::int64_t>& name, Alone& alone,
                           std::int64_t vocab) {
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> positions;
  for (const Streams::Id id : streams.ids()) {
    positions.push_back(streams.position(id));
    tokens.push_back(token_of(name.at(id), positions.back(), vocab));
  }
  const Array logits = streams.step(tokens);
  REQUIRE(logits.shape() == Shape{std::ssize(tokens), vocab});
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    CHECK(streams.position(streams.ids()[i]) == positions[i] + 1);
    const auto row = static_cast<std::int64_t>(i);
    const Array own = trace([&](Tensor all) { return slice(all, 0, row, row + 1); }, logits.spec())(logits);
    if (!own.same_bits(alone.logits(name.at(streams.ids()[i]), positions[i]))) return streams.ids()[i];
  }
  return -1;
}

// Streams come, go and come back for 40 tokens.
void comings_and_goings(const LanguageModelConfig& config, DType dtype, ttt::FormChoice form) {
  const StateDict params = params_of(config, dtype);
  Alone alone(config, params, dtype, form);
  Streams streams(config, params, dtype, kTokens, form);
  std::map<Streams::Id, std::int64_t> name;
  std::vector<std::pair<std::int64_t, Stopped>> gone;
  std::int64_t names = 0, most = 0;
  for (std::int64_t round = 0; round < 40; ++round) {
    if (round % 3 == 0 && names < 9) name[streams.join()] = names++;
    if (round % 5 == 4 && streams.ids().size() > 1) {
      const Streams::Id id = streams.ids()[static_cast<std::size_t>(round) % streams.ids().size()];
      Stopped stopped = streams.leave(id);
      if (stopped.position < kTokens) gone.emplace_back(name.at(id), std::move(stopped));
    }
    if (round % 7 == 6 && !gone.empty()) {
      name[streams.join(gone.front().second)] = gone.front().first;
      gone.erase(gone.begin());
    }
    const std::vector<Streams::Id> here = streams.ids();
    for (const Streams::Id id : here)
      if (streams.position(id) == kTokens) streams.leave(id);
    most = std::max<std::int64_t>(most, std::ssize(streams.ids()));
    CAPTURE(round);
    REQUIRE(wrong_in_step(streams, name, alone, config.vocab_size) == -1);
  }
  CHECK(most >= 5);
}

}  // namespace

TEST_CASE("streams: each reads as if it were alone, to the bit: every learner, while others come and go" *
          doctest::test_suite("slow")) {
  for (const std::string& learner : layer_names()) {
    if (learner == kEndToEnd) continue;
    CAPTURE(learner);
    comings_and_goings(small_model(layer_type(learner)), DType::f32, ttt::FormChoice::automatic);
  }
}

TEST_CASE("streams: so it is with every backbone, form, type, number of heads and of threads" *
          doctest::test_suite("slow")) {
  for (const int threads : {1, 3}) {
    const Threads used(threads);
    for (LanguageModelConfig config : small_models())
      for (const DType dtype : {DType::f32, DType::f64}) {
        CAPTURE(name_of(config));
        comings_and_goings(config, dtype, ttt::FormChoice::automatic);
        config.num_attention_heads = 1;
        comings_and_goings(config, dtype, ttt::FormChoice::primal);
      }
  }
  LanguageModelConfig windowed = small_model("lact");
  windowed.attention_window = 3;
  comings_and_goings(windowed, DType::f64, ttt::FormChoice::automatic);
  LanguageModelConfig online = small_model("linear");
  online.mini_batch_size = 1;
  comings_and_goings(online, DType::f64, ttt::FormChoice::automatic);
}

TEST_CASE("streams: what has left is a file that another object, or a Decoder, goes on from") {
  const TemporaryFolder folder;
  for (const char* layer : {"linear", "lact", "attention"}) {
    CAPTURE(layer);
    const LanguageModelConfig config = small_model(layer);
    const StateDict params = params_of(config, DType::f32);
    Alone alone(config, params, DType::f32, ttt::FormChoice::automatic);
    Streams first(config, params, DType::f32, kTokens), second(config, params, DType::f32, kTokens);
    const Streams::Id kept = first.join(), moved = first.join();
    const std::map<Streams::Id, std::int64_t> name{{kept, 0}, {moved, 1}};
    for (int t = 0; t < 9; ++t) REQUIRE(wrong_in_step(first, name, alone, config.vocab_size) == -1);
    const Stopped stays = first.look(kept);
    CHECK(stays.position == 9);
    const std::string path = folder / "stopped.safetensors";
    first.leave(moved).save(path);
    CHECK(first.ids() == std::vector<Streams::Id>{kept});

    const Stopped read = Stopped::load(path);
    CHECK(read.position == 9);
    const Streams::Id again = second.join(read);
    for (int t = 0; t < 5; ++t) {
      REQUIRE(wrong_in_step(second, {{again, 1}}, alone, config.vocab_size) == -1);
      REQUIRE(wrong_in_step(first, name, alone, config.vocab_size) == -1);
    }
    Decoder decoder(config, params, DType::f32, 1, kTokens);
    decoder.restore(read.state, read.position);
    const Array token = Array::of({static_cast<double>(token_of(1, 9, config.vocab_size))}, {1}, DType::i32);
    CHECK(decoder.step(token).same_bits(alone.logits(1, 9)));
    const Streams::Id of_decoder = second.join({decoder.state(), decoder.position()});
    CHECK(second.position(of_decoder) == 10);
    REQUIRE(wrong_in_step(second, {{again, 1}, {of_decoder, 1}}, alone, config.vocab_size) == -1);
  }
}

TEST_CASE(
    "streams: any number may come and go between two steps, and what the caller does to its copies is nobody's") {
  const LanguageModelConfig config = small_model("lact");
  const StateDict params = params_of(config, DType::f32);
  for (const int threads : {1, 2, 3}) {
    const Threads used(threads);
    CAPTURE(threads);
    Alone alone(config, params, DType::f32, ttt::FormChoice::automatic);
    Streams streams(config, params, DType::f32, kTokens);
    std::map<Streams::Id, std::int64_t> name;
    for (std::int64_t i = 0; i < 5; ++i) name[streams.join()] = i;
    const auto spoil = [](Stopped& stopped) {
      for (auto& [state, value] : stopped.state) std::ranges::fill(value.as<float>(), 7.0f);
    };
    const auto same_states = [](const Stopped& a, const Stopped& b) {
      return a.position == b.position &&
             std::ranges::equal(a.state, b.state, [](const auto& x, const auto& y) {
               return x.first == y.first && x.second.same_bits(y.second);
             });
    };
    // Of one that has not read: what it begins with, which is the others' too.
    Stopped unread = streams.look(streams.ids()[0]);
    spoil(unread);
    unread = streams.leave(streams.ids()[4]);
    name[streams.join(unread)] = 4;
    spoil(unread);
    for (int round = 0; round < 3; ++round)
      REQUIRE(wrong_in_step(streams, name, alone, config.vocab_size) == -1);
    for (int round = 0; round < 4; ++round) {
      CAPTURE(round);
      // Three leave, come back in another order, and one leaves again before it has read.
      std::vector<std::pair<std::int64_t, Stopped>> gone;
      for (const std::size_t at : {3, 0, 1}) {
        const Streams::Id id = streams.ids()[at];
        const Stopped seen = streams.look(id);
        gone.emplace_back(name.at(id), streams.leave(id));
        CHECK(same_states(seen, gone.back().second));
      }
      for (auto& [who, stopped] : gone) {
        const Stopped kept = stopped;
        Stopped given{{}, kept.position, kept.model};
        for (const auto& [state, value] : kept.state) given.state.emplace(state, value.clone());
        name[streams.join(given)] = who;
        spoil(given);
        CHECK(same_states(streams.look(streams.ids().back()), kept));
      }
      const Streams::Id last = streams.ids().back();
      const Stopped again = streams.leave(last);
      CHECK(same_states(again, gone.back().second));
      REQUIRE(wrong_in_step(streams, name, alone, config.vocab_size) == -1);
      name[streams.join(again)] = name.at(last);
      CHECK(streams.ids().size() == 5);
    }
    while (!streams.ids().empty()) streams.leave(streams.ids().front());
    name[streams.join()] = 8;
    REQUIRE(wrong_in_step(streams, name, alone, config.vocab_size) == -1);
  }
}

TEST_CASE("streams: wrong calls are refused with what to do, and change nothing") {
  const TemporaryFolder folder;
  const LanguageModelConfig config = small_model("linear");
  const StateDict params = params_of(config, DType::f64);
  Streams streams(config, params, DType::f64);
  const Streams::Id a = streams.join(), b = streams.join();
  const Array before = streams.step({1, 2});
  CHECK(contains(message_of<ShapeError>([&] { streams.step({1}); }), "1 tokens for 2 streams"));
  CHECK(contains(message_of<ValueError>([&] { streams.step({1, 13}); }), "token 13 of stream 1 is outside"));
  CHECK(contains(message_of<ValueError>([&] { streams.step({-1, 1}); }), "token -1 of stream 0"));
  CHECK(streams.position(a) == 1);
  const Stopped gone = streams.leave(b);
  CHECK(contains(message_of<ConfigError>([&] { streams.leave(b); }), "there is no stream 1"));
  CHECK(contains(message_of<ConfigError>([&] { streams.position(7); }), "there is no stream 7"));
  CHECK(streams.join(gone) == 2);  // a number is not given twice

  Stopped wrong = gone;
  wrong.position = -1;
  CHECK(contains(message_of<ConfigError>([&] { streams.join(wrong); }), "position -1"));
  wrong = gone;
  const std::string some = wrong.state.begin()->first;
  wrong.state.erase(some);
  CHECK(contains(message_of<ConfigError>([&] { streams.join(wrong); }), "it lacks the value '" + some + "'"));
  wrong = gone;
  wrong.state.emplace("other", Array::zeros(DType::f64, {1}));
  CHECK(contains(message_of<ConfigError>([&] { streams.join(wrong); }), "holds 'other'"));
  wrong = gone;
  wrong.state.begin()->second = Array::zeros(DType::f64, {2, 2});
  CHECK(contains(message_of<ConfigError>([&] { streams.join(wrong); }), "the model wants"));
  CHECK(streams.ids().size() == 2);

  std::ofstream(folder / "words") << "no such file";
  CHECK(contains(message_of<IoError>([&] { Stopped::load(folder / "words"); }), "safetensors"));
  write_safetensors(folder / "other", {params, {}, {}});
  CHECK(contains(message_of<IoError>([&] { Stopped::load(folder / "other"); }), "no position"));

  Streams attention(small_model("attention"), params_of(small_model("attention"), DType::f64), DType::f64, 2);
  const Streams::Id full = attention.join();
  attention.step({1}), attention.step({2});
  CHECK(
      contains(message_of<ConfigError>([&] { attention.step({3}); }), "stream 0 holds 2 tokens and is full"));
  Stopped long_one = attention.look(full);
  long_one.position = 3;
  CHECK(contains(message_of<ConfigError>([&] { attention.join(long_one); }), "(2 tokens)"));
  for (const Streams::Id id : std::vector(streams.ids())) streams.leave(id);
  CHECK(streams.step({}).shape() == Shape{0, 13});
}

TEST_CASE("streams: what was saved of another model, or edited, is refused and writes nowhere") {
  const TemporaryFolder folder;
  const LanguageModelConfig config = small_model("linear");
  const StateDict params = params_of(config, DType::f64);
  Streams streams(config, params, DType::f64);
  const Streams::Id id = streams.join();
  streams.step({3}), streams.step({4});
  const Stopped saved = streams.look(id);
  saved.save(folder / "stream");
  const Stopped read = Stopped::load(folder / "stream");
  CHECK(read.model == saved.model);
  CHECK(!read.model.empty());
  CHECK(streams.position(streams.join(read)) == 2);

  const auto why = [&](Streams& to, const Stopped& from) {
    return message_of<ConfigError>([&] { to.join(from); });
  };
  StateDict other_weights = params;
  other_weights.begin()->second = random(other_weights.begin()->second.spec(), 77);
  Streams others(config, other_weights, DType::f64);
  CHECK(contains(why(others, read), "has read with another model, or with other weights"));
  LanguageModelConfig naive = small_model("naive-ttt"), delta = small_model("delta-net");
  Streams of_naive(naive, params_of(naive, DType::f64), DType::f64),
      of_delta(delta, params_of(delta, DType::f64), DType::f64);
  const Stopped of_another = of_naive.look(of_naive.join());
  CHECK(contains(why(of_delta, of_another), "another model"));

  // Counters say where rows are written. Without the model's name, as in older files, they are still looked at.
  Stopped edited = read;
  edited.model.clear();
  CHECK(streams.position(streams.join(edited)) == 2);
  edited.position = 3;
  CHECK(contains(why(streams, edited), "after 3 tokens it is 3"));
  int counters = 0;
  for (const double slot : {77.0, 4.0, -3.0, 1.5, 1e9, std::nan("")}) {
    CAPTURE(slot);
    for (const auto& entry : read.state) {
      const std::string& name = entry.first;
      if (!name.ends_with("/slot")) continue;
      Stopped wrong = read;
      wrong.model.clear();
      wrong.state.at(name) = Array::full(DType::f64, {1}, slot);
      CHECK(contains(why(streams, wrong), "'" + name + "' counts"));
      Decoder decoder(config, params, DType::f64, 1);
      CHECK(contains(message_of<ConfigError>([&] { decoder.restore(wrong.state, 2); }),
                     "'" + name + "' counts"));
      ++counters;
    }
  }
  CHECK(counters >= 6);
}

TEST_CASE(
    "streams: a model that remembers nothing, and is another one read as a whole, is refused as a Decoder does") {
  const LogitsFn forgets = [](const Params& p, Tensor tokens, ttt::Stream&) {
    return cumsum(gather(p("table", {5, 5}), tokens), 1);
  };
  const StateDict params{{"table", random({DType::f32, {5, 5}}, 3)}};
  const std::string of_decoder = message_of<ConfigError>([&] { Decoder(forgets, params, DType::f32, 1); });
  CHECK(message_of<ConfigError>([&] { Streams(forgets, params, DType::f32); }) == of_decoder);
}

TEST_CASE("streams: a model with a state that sequences share is refused") {
  const LogitsFn shared = [](const Params& p, Tensor tokens, ttt::Stream& stream) {
    const Tensor h = gather(p("table", {5, 5}), tokens);
    if (!stream.stepping()) return h;
    const Tensor seen = stream.state("seen", zeros(h.dtype(), {1}));
    stream.carry("seen", seen + 1.0);
    return h * seen;
  };
  StateDict params{{"table", Array::full(DType::f32, {5, 5}, 0.5)}};
  const std::string why = message_of<ConfigError>([&] { Streams(shared, params, DType::f32); });
  CHECK(contains(why, "the state 'seen' of two sequences is [1]"));
  CHECK(contains(why, "Stream::counter"));
  const LogitsFn own = [](const Params& p, Tensor tokens, ttt::Stream& stream) {
    const Tensor h = gather(p("table", {5, 5}), tokens);
    if (!stream.stepping()) return h;
    const Tensor seen = stream.counter("seen", 100, h.dtype());  // [batch, 1, 1, 1]
    return h * reshape(seen, {seen.dim(0), 1, 1});
  };
  Streams streams(own, params, DType::f32);
  streams.join();
  streams.step({1});
  streams.join();
  CHECK(streams.step({1, 1}).to_vector() == std::vector<double>{0.5, 0.5, 0.5, 0.5, 0.5, 0, 0, 0, 0, 0});
}

TEST_CASE(
    "streams: a model in which sequences see each other is refused, in what it answers, carries and learns") {
  const StateDict params{{"table", random({DType::f32, {5, 5}}, 3)}};
  enum class Meet { nowhere, answer, state, chunk };
  const auto model = [](Meet where) {
    return LogitsFn([where](const Params& p, Tensor tokens, ttt::Stream& stream) {
      const Tensor h = gather(p("table", {5, 5}), tokens);
      const auto met = [&](Meet here, Tensor x) { return where == here ? x - mean(x, {0}, kKeep) : x; };
      const Tensor before = stream.before("before", met(Meet::state, h));
      if (!stream.stepping()) return h + before;
      const Shape each{tokens.dim(0), 1, 1, 5};
      const Tensor seen = stream.state("seen", zeros(h.dtype(), each));
      stream.carry_chunk("seen", met(Meet::chunk, 0.5 * seen + 1.0), 4, {});
      return met(Meet::answer, h + before) + reshape(seen, h.shape());
    });
  };
  CHECK_NOTHROW(Streams(model(Meet::nowhere), params, DType::f32));
  for (const Meet where : {Meet::answer, Meet::state, Meet::chunk}) {
    CAPTURE(static_cast<int>(where));
    const std::string why = message_of<ConfigError>([&] { Streams(model(where), params, DType::f32); });
    CHECK(contains(why, "depends on the others that are read with it: "));
    CHECK(contains(why, "streams_test.cpp:"));
    CHECK(contains(why, "read each text with a Decoder of its own"));
  }
}

TEST_CASE("streams: what has left goes on with the same model written in another way") {
  LanguageModelConfig config = small_model("linear"), published = config;
  config.attention_window = 0;
  published.attention_window = kAsPublished;
  const StateDict params = params_of(config, DType::f32);
  Streams one(config, params, DType::f32), other(published, params, DType::f32);
  const Streams::Id id = one.join();
  one.step({3});
  CHECK(other.position(other.join(one.leave(id))) == 1);
}

TEST_CASE("streams: TTT-E2E, which counts for all sequences at once, is refused") {
  CHECK(contains(message_of<ConfigError>([&] { Streams(small_model(kEndToEnd), {}, DType::f32); }),
                 "read each text with a Decoder of its own"));
}
