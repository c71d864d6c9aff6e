// The promise: reading token by token is reading the whole sequence; and stopping, storing the state and
// going on later changes no bit.
#include "models/decoder.h"

#include <ranges>
#include <type_traits>

#include "engine/io/safetensors.h"
#include "models/streams.h"
#include "models/trainer.h"
#include "tests/models/model_testing.h"
#include "tests/temporary_folder.h"
#include "ttt/attention.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

constexpr std::int64_t kBatch = 2, kTime = 11;  // two mini-batches and a part of one

struct Setup {
  LanguageModelConfig config;
  TracedModel whole;
  StateDict params;
  Array tokens;
};

Setup setup(const LanguageModelConfig& config, DType dtype = DType::f64,
            ttt::FormChoice form = ttt::FormChoice::automatic) {
  TracedModel whole = logits_model(config, dtype, i32({kBatch, kTime}), form);
  StateDict params = random_parameters(whole, dtype);
  return {config, std::move(whole), std::move(params), random_tokens(kBatch, kTime, config.vocab_size)};
}

// Logits after each of the tokens from `begin` to `end`.
Arrays read(Decoder& decoder, const Array& tokens, std::int64_t begin, std::int64_t end) {
  Arrays out;
  for (std::int64_t t = begin; t < end; ++t) out.push_back(decoder.step(column(tokens, t)));
  return out;
}

Decoder decoder_of(const Setup& s, DType dtype = DType::f64,
                   ttt::FormChoice form = ttt::FormChoice::automatic) {
  return Decoder(s.config, s.params, dtype, kBatch, kTime, form);
}

}  // namespace

TEST_CASE("decoding gives the logits of the whole sequence: every layer type, backbone and form") {
  for (const LanguageModelConfig& config : small_models())
    for (const ttt::FormChoice form : {ttt::FormChoice::primal, ttt::FormChoice::dual}) {
      CAPTURE(name_of(config));
      const Setup s = setup(config, DType::f64, form);
      const Array logits = s.whole.function(s.whole.bind({s.tokens}, {&s.params}))[0];
      Decoder decoder = decoder_of(s, DType::f64, form);
      const Arrays steps = read(decoder, s.tokens, 0, kTime);
      CHECK(decoder.position() == kTime);
      for (std::int64_t t = 0; t < kTime; ++t) {
        const Array expected = trace(
            [&](Tensor all) {
              return reshape(slice(all, 1, t, t + 1), {kBatch, config.vocab_size});
            },
            logits.spec())(logits);
        CHECK(relative_error(steps[static_cast<std::size_t>(t)], expected) < 1e-10);
      }
    }
}

TEST_CASE("going on from a stored state is bit-identical to not having stopped, and unlike a cold start") {
  const TemporaryFolder folder;
  const std::string path = folder / "state.safetensors";
  for (const LanguageModelConfig& config : small_models())
    for (const DType dtype : {DType::f32, DType::f64}) {
      CAPTURE(name_of(config));
      const Setup s = setup(config, dtype);
      Decoder straight = decoder_of(s, dtype), first = decoder_of(s, dtype), second = decoder_of(s, dtype);
      const Arrays expected = read(straight, s.tokens, 0, kTime);
      for (const std::int64_t stop : {1, 4, 6}) {  // inside and at the end of a mini-batch
        CAPTURE(stop);
        const Arrays rest(expected.begin() + stop, expected.end());
        first.reset();
        read(first, s.tokens, 0, stop);
        const StateDict state = first.state();
        second.reset();
        CHECK(!second.step(column(s.tokens, stop)).same_bits(rest[0]));  // the cold start
        second.restore(state, first.position());
        CHECK(second.position() == stop);
        CHECK(same_bits(read(second, s.tokens, stop, kTime), rest));
        CHECK(second.position() == kTime);
        CHECK(same_bits(read(first, s.tokens, stop, kTime), rest));
        write_safetensors(path, {state, {}});  // as taken: reading on has not reached into it
        second.restore(read_safetensors(path).tensors, stop);
        CHECK(same_bits(read(second, s.tokens, stop, kTime), rest));
      }
      straight.reset();
      CHECK(straight.position() == 0);
      CHECK(same_bits(read(straight, s.tokens, 0, kTime), expected));
    }
}

TEST_CASE("logits that were given out stay as they were") {
  const Setup s = setup(small_model("linear"));
  Decoder decoder = decoder_of(s);
  const Array first = decoder.step(column(s.tokens, 0)), kept = first.clone();
  read(decoder, s.tokens, 1, 4);
  CHECK(first.same_bits(kept));
}

TEST_CASE("sequences of a batch are decoded independently, to the last bit") {
  for (const LanguageModelConfig& config : small_models()) {
    CAPTURE(name_of(config));
    const Setup s = setup(config);
    Array other = s.tokens.clone();
    for (std::int64_t t = 0; t < kTime; ++t) {
      std::int32_t& id = other.as<std::int32_t>()[static_cast<std::size_t>(kTime + t)];
      id = static_cast<std::int32_t>((id + 1) % config.vocab_size);
    }
    Decoder a = decoder_of(s), b = decoder_of(s);
    for (std::int64_t t = 0; t < kTime; ++t) {
      const Array x = a.step(column(s.tokens, t)), y = b.step(column(other, t));
      const auto row = static_cast<std::size_t>(config.vocab_size);
      CHECK(std::ranges::equal(x.as<double>().first(row), y.as<double>().first(row)));
      CHECK(!std::ranges::equal(x.as<double>().subspan(row), y.as<double>().subspan(row)));
    }
  }
}

TEST_CASE(
    "an attention cache that is full, or has no room at all, "
    "is a ConfigError, while a learner reads on for ever") {
  const Setup s = setup(small_model("attention"));
  Decoder decoder(s.config, s.params, DType::f64, kBatch, 2);
  const Arrays out = read(decoder, s.tokens, 0, 2);
  CHECK(contains(message_of<ConfigError>([&] { decoder.step(column(s.tokens, 2)); }),
                 "the attention cache holds 2 tokens and is full"));
  decoder.reset();
  CHECK(same_bits(read(decoder, s.tokens, 0, 2), out));
  CHECK(contains(message_of<ConfigError>([&] { Decoder(s.config, s.params, DType::f64, kBatch); }),
                 "attention needs a capacity"));
  CHECK(contains(message_of<ConfigError>([&] { decoder.restore(decoder.state(), 3); }),
                 "position 3 is outside"));
  CHECK(contains(message_of<ConfigError>([&] { decoder.restore(decoder.state(), -1); }),
                 "position -1 is outside"));

  const Setup t = setup(small_model("linear"));
  Decoder learner(t.config, t.params, DType::f64, kBatch, 2);
  read(learner, t.tokens, 0, kTime);
  CHECK(learner.position() == kTime);
}

TEST_CASE("parameters that do not fit the configuration are a ConfigError that names them") {
  const Setup s = setup(small_model("linear"));
  const auto refused = [&](const std::function<void(StateDict&)>& change, DType dtype = DType::f64) {
    StateDict params = s.params;
    change(params);
    return message_of<ConfigError>([&] { Decoder(s.config, params, dtype, kBatch); });
  };
  CHECK(contains(refused([](StateDict& p) { p.erase("model.norm.weight"); }),
                 "lacks the parameter 'model.norm.weight'"));
  CHECK(contains(refused([](StateDict& p) { p["model.extra"] = Array::zeros(DType::f64, {1}); }),
                 "holds 'model.extra'"));
  CHECK(contains(refused([](StateDict& p) { p["model.norm.weight"] = Array::zeros(DType::f64, {9}); }),
                 "'model.norm.weight' is [9], the model wants [8]"));
  CHECK(contains(refused([](StateDict&) {}, DType::f32), ", the model wants f32["));
  CHECK(contains(message_of<ConfigError>([&] { Decoder(s.config, s.params, DType::f64, 0); }),
                 "the batch must be at least 1"));
}

TEST_CASE("a state that does not fit is a ConfigError, and leaves the decoder as it was") {
  const Setup s = setup(small_model("linear"));
  Decoder decoder = decoder_of(s), twin = decoder_of(s);
  read(decoder, s.tokens, 0, 5);
  read(twin, s.tokens, 0, 5);
  const std::string weight = "layers.0.seq_modeling_block.W1";
  const auto refused = [&](const std::function<void(StateDict&)>& change) {
    StateDict state = decoder.state();
    REQUIRE(state.contains(weight));
    change(state);
    return message_of<ConfigError>([&] { decoder.restore(state, 5); });
  };
  CHECK(contains(refused([&](StateDict& x) { x.erase(weight); }),
                 "it lacks the value '" + weight + "' f64[2,2,4,4]"));
  CHECK(contains(refused([&](StateDict& x) { x["layers.7.W1"] = x[weight]; }),
                 "the state holds 'layers.7.W1'"));
  CHECK(contains(refused([&](StateDict& x) { x[weight] = Array::zeros(DType::f64, {1}); }),
                 "'" + weight + "' is f64[1], the model wants f64[2,2,4,4]"));
  CHECK(decoder.position() == 5);
  CHECK(same_bits(read(decoder, s.tokens, 5, kTime), read(twin, s.tokens, 5, kTime)));
}

TEST_CASE(
    "a count of tokens that ends is not begun again, and one that does not fit the position is refused") {
  const StateDict params{{"table", Array::full(DType::f32, {5, 5}, 0.5)}};
  const auto counting = [](std::int64_t capacity) -> LogitsFn {
    return [capacity](const Params& p, Tensor tokens, ttt::Stream& stream) {
      const Tensor h = gather(p("table", {5, 5}), tokens);
      const Tensor at = stream.positions("place", h, capacity);
      return h + (stream.stepping() ? reshape(at, {at.dim(0), 1, 1}) : reshape(at, {1, at.dim(0), 1}));
    };
  };
  const Array token = Array::full(DType::i32, {1}, 2);
  const auto ends = [&](std::int64_t capacity) {
    Decoder decoder(counting(capacity), params, DType::f32, 1);
    Streams streams(counting(capacity), params, DType::f32);
    const auto last = static_cast<double>(capacity - 1);
    decoder.restore({{"place", Array::of({last}, {1}, DType::f32)}}, capacity - 1);
    streams.join(Stopped{decoder.state(), capacity - 1});
    CHECK(decoder.step(token).at(0) == last + 0.5);
    CHECK(streams.step({2}).at(0) == last + 0.5);
    const std::string behind = fmt::format("'place' counts to {} tokens, which have been read", capacity);
    CHECK(contains(message_of<ConfigError>([&] { decoder.step(token); }), behind));
    CHECK(contains(message_of<ConfigError>([&] { streams.step({2}); }), behind));
    CHECK(decoder.position() == capacity);
  };
  ends(3);
  // 0.5 more than 2^24 - 1 is no f32: it rounds to even.
  Decoder far(counting(ttt::Stream::kForever), params, DType::f32, 1);
  far.restore({{"place", Array::full(DType::f32, {1}, (1 << 24) - 1)}}, (1 << 24) - 1);
  CHECK(far.step(token).at(0) == (1 << 24));
  CHECK(contains(message_of<ConfigError>([&] { far.step(token); }), "counts to 16777216 tokens"));

  // A window's ring of two: 0, 1, 2, 3, and on from 2.
  const LogitsFn windowed = [](const Params& p, Tensor tokens, ttt::Stream& stream) {
    const Tensor h = gather(p("table", {5, 5}), tokens), x = reshape(h, {h.dim(0), 1, h.dim(1), 5});
    return reshape(ttt::attention_along(x, x, x, {.window = 2}, stream, "a"), h.shape());
  };
  Decoder ring(windowed, params, DType::f32, 1);
  for (const double seen : {0, 1, 2, 3, 2, 3, 2}) {
    CHECK(ring.state().at("a.seen").item() == seen);
    ring.restore(ring.state(), ring.position());
    ring.step(token);
  }
  StateDict wrong = ring.state();
  wrong["a.seen"] = Array::full(DType::f32, {1}, 2);
  CHECK(contains(message_of<ConfigError>([&] { ring.restore(wrong, ring.position()); }),
                 "'a.seen' counts 2, after 7 tokens it is 3"));
}

TEST_CASE("a token outside of the vocabulary is an error, and the decoder can go on") {
  const Setup s = setup(small_model("mlp"));
  Decoder decoder = decoder_of(s), twin = decoder_of(s);
  read(decoder, s.tokens, 0, 2);
  read(twin, s.tokens, 0, 2);
  const auto refused = [&]<class E>(E, const Array& tokens) {
    return message_of<E>([&] { decoder.step(tokens); });
  };
  CHECK(contains(refused(ValueError(""), Array::of({1, 13}, {kBatch}, DType::i32)),
                 "token 13 of sequence 1 is outside of the vocabulary, 0 to 12"));
  CHECK(
      contains(refused(ValueError(""), Array::of({-1, 1}, {kBatch}, DType::i32)), "token -1 of sequence 0"));
  CHECK(contains(refused(ShapeError(""), Array::zeros(DType::i32, {kBatch + 1})),
                 "tokens are i32[3]; a step wants i32[2], one token of each sequence"));
  CHECK(contains(refused(ShapeError(""), Array()), "tokens are empty"));
  CHECK(contains(refused(DTypeError(""), Array::zeros(DType::f32, {kBatch})), "f32[2]; they must be i32"));
  CHECK(decoder.position() == 2);
  CHECK(same_bits(read(decoder, s.tokens, 2, 5), read(twin, s.tokens, 2, 5)));
}

TEST_CASE("what the caller writes into its arrays afterwards changes no decoder and no streams") {
  for (const char* layer : {"linear", "mlp", "attention"}) {
    CAPTURE(layer);
    const Setup s = setup(small_model(layer), DType::f32), same = setup(small_model(layer), DType::f32);
    Decoder decoder = decoder_of(s, DType::f32), expected = decoder_of(same, DType::f32);
    Streams streams(s.config, s.params, DType::f32, kTime),
        wanted(same.config, same.params, DType::f32, kTime);
    streams.join(), wanted.join();
    for (const auto& [name, value] : s.params) {
      Array written = value;
      std::ranges::fill(written.as<float>(), 0.25F);
    }
    CHECK(same_bits(read(decoder, s.tokens, 0, kTime), read(expected, s.tokens, 0, kTime)));
    for (std::int64_t t = 0; t < kTime; ++t) {
      if (t == 3) streams.join(), wanted.join();  // for which new programs are made
      std::vector<std::int32_t> tokens(streams.ids().size(), 1);
      CHECK(streams.step(tokens).same_bits(wanted.step(tokens)));
    }
  }
}

// What steps write over is no one else's, so these are not copied. (Streams neither, which a trait does not see.)
static_assert(!std::is_copy_constructible_v<Decoder> && !std::is_copy_constructible_v<StateProgram> &&
              !std::is_copy_constructible_v<Training> && !std::is_copy_constructible_v<Trainer> &&
              !std::is_copy_constructible_v<Plan> && !std::is_copy_constructible_v<ShardedAdamW>);
