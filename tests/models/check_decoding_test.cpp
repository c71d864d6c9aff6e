// The promise: check_decoding accepts what reads token by token as it reads the whole, and says of anything else
// from which token on it differs.
#include <doctest/doctest.h>

#include "models/decoder.h"
#include "tests/models/model_testing.h"
#include "tests/models/own_functions.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

Tensor projected(const Params& params, Tensor h) {
  return matmul(h, params("head", {kWidth, kVocab}, Init::zeros()));  // starts so that no logit differs
}

// h_t = keep_t h_{t-1} + (1 - keep_t) x_t over the rows of x [batch, time, width], from `before` on. Its last h
// goes to `last`.
Tensor recurrence(const Params& params, Tensor x, Tensor before, Tensor& last) {
  const Tensor keep = sigmoid(matmul(x, params("keep", {kWidth, kWidth})));
  const ScanResult r = scan(
      [](const Tensors& carry, const Tensors& now) -> StepOutput {
        const Tensor h = now[0] * carry[0] + (1.0 - now[0]) * now[1];
        return {{h}, {h}};
      },
      {before}, {permute(keep, {1, 0, 2}), permute(x, {1, 0, 2})});
  last = r.carries[0];
  return permute(r.ys[0], {1, 0, 2});
}

Tensor zero_rows(Tensor x) { return zeros(x.dtype(), {x.dim(0), kWidth}); }

Tensor right(const Params& params, Tensor tokens, ttt::Stream& stream) {
  const Tensor x = embedded(params, tokens);
  Tensor h = zero_rows(x), last;
  if (stream.stepping()) h = stream.state("h", h);
  const Tensor out = recurrence(params, x, h, last);
  if (stream.stepping()) stream.carry("h", last);
  return projected(params, out);
}
// Begins with zeros at every token while it steps.
Tensor forgetful(const Params& params, Tensor tokens, ttt::Stream&) {
  const Tensor x = embedded(params, tokens);
  Tensor last;
  return projected(params, recurrence(params, x, zero_rows(x), last));
}
// Asks the stream for the row before, but not for what the recurrence carries.
Tensor half_forgetful(const Params& params, Tensor tokens, ttt::Stream& stream) {
  const Tensor x = embedded(params, tokens), rows = stream.with_history("rows", x, 1);
  Tensor last;
  const Tensor now = x + slice(rows, 1, 0, x.dim(1));
  return projected(params, recurrence(params, now, zero_rows(x), last));
}
Tensor bigram(const Params& params, Tensor tokens, ttt::Stream&) {
  return gather(params("table", {kVocab, kVocab}), tokens);
}
// Read as a whole, every token sees the mean of all.
Tensor sees_later(const Params& params, Tensor tokens, ttt::Stream&) {
  const Tensor x = embedded(params, tokens);
  return projected(params, x + mean(x, {1}, kKeep));
}
// Counts tokens; read as a whole the count turns back after eight of them.
Tensor counts(const Params& params, Tensor tokens, ttt::Stream& stream) {
  const Tensor x = embedded(params, tokens);
  Tensor place;
  if (stream.stepping()) {
    place = stream.counter("place", 1 << 20, x.dtype());
  } else {
    std::vector<double> places;
    for (std::int64_t t = 0; t < x.dim(1); ++t) places.push_back(static_cast<double>(t % 8));
    place = constant(Array::of(places, {x.dim(1)}, x.dtype()));
  }
  return projected(params, x * reshape(place + 1.0, {place.dim(0), 1}));
}

std::string refused(const LogitsFn& model, const CheckDecodingOptions& options = {}) {
  return message_of<ConfigError>([&] { check_decoding(model, options); });
}

StateDict zeros_for(const LogitsFn& model) {
  const TracedModel traced =
      trace_model(DType::f32, {i32({1, 2})}, [&](ParamTable& table, const Tensors& in) {
        ttt::Stream stream;
        return Tensors{model(Params(table), in[0], stream)};
      });
  return random_parameters(traced, DType::f32);
}

}  // namespace

TEST_CASE("every layer of a language model is found to decode as it reads the whole") {
  for (const std::string& learner : layer_names()) {
    if (learner == kEndToEnd) continue;
    CAPTURE(learner);
    const LanguageModelConfig config = small_model(layer_type(learner), Backbone::mamba);
    CHECK_NOTHROW(check_decoding(language_model(config, {.attention_capacity = 40})));
  }
}

TEST_CASE(
    "a recurrence through the stream is found right, and one that ignores it is refused with the token") {
  CHECK_NOTHROW(check_decoding(right));
  CHECK_NOTHROW(check_decoding(right, {.dtype = DType::f32, .batch = 3, .tokens = 90}));
  CHECK_NOTHROW(check_decoding(bigram));
  const std::string none = refused(forgetful), half = refused(half_forgetful), late = refused(counts),
                    not_causal = refused(sees_later);
  CHECK(contains(none, "from token 1 on (the first is 0)"));
  CHECK(contains(none, "the stream carries nothing"));
  CHECK(contains(none, "has to ask the stream for: state() and carry()"));
  CHECK(contains(half, "from token 1 on"));
  CHECK(contains(half, "the stream carries 'rows'"));
  CHECK(contains(late, "from token 8 on"));
  CHECK(contains(not_causal, "from token 0 on"));
  CHECK(contains(not_causal, "it depends on later ones"));
  CHECK_FALSE(contains(none, "it depends on later ones"));
}

TEST_CASE("the difference that is named is that of the logits") {
  const std::string text = refused(counts, {.batch = 1, .tokens = 12});
  // At token 8 the place is 9 where it should be 1, and no later one is further off than at token 11: 12 and 4.
  const auto number = [&](const std::string& after) {
    const std::size_t at = text.find(after);
    REQUIRE(at != std::string::npos);
    return std::stod(text.substr(at + after.size()));
  };
  const double stepped = number("sequence 0 is "), whole = number("and not ");
  CHECK(stepped == doctest::Approx(9 * whole).epsilon(1e-4));
}

TEST_CASE(
    "a Decoder refuses a model that carries nothing and yet looks back, not one whose tokens stand alone") {
  const StateDict own = zeros_for(forgetful);
  CHECK(
      contains(message_of<ConfigError>([&] { Decoder(forgetful, own, DType::f32, 2); }), "from token 1 on"));
  Decoder decoder(bigram, zeros_for(bigram), DType::f32, 2);
  CHECK(decoder.position() == 0);
  CHECK(decoder.carried().empty());
  CHECK(decoder.vocab_size() == kVocab);
  CHECK(decoder.batch() == 2);
  CHECK(Decoder(right, zeros_for(right), DType::f32, 1).carried() == std::vector<std::string>{"h"});
}

TEST_CASE("parameters may be given; what makes no sense is refused by name") {
  StateDict zeros = random_parameters(trace_model(DType::f64, {i32({1, 2})},
                                                  [&](ParamTable& table, const Tensors& in) {
                                                    ttt::Stream stream;
                                                    return Tensors{forgetful(Params(table), in[0], stream)};
                                                  }),
                                      DType::f64);
  for (auto& [name, value] : zeros) value = Array::zeros(DType::f64, value.shape());
  CHECK_NOTHROW(check_decoding(forgetful, {.params = zeros}));  // all logits are 0
  zeros.erase("keep");
  CHECK(contains(refused(forgetful, {.params = zeros}), "it lacks the parameter 'keep' [6,6]"));
  CHECK(contains(refused(right, {.tokens = 1}), "2 tokens or more"));
  CHECK(contains(refused(right, {.batch = 0}), "a batch of 1 or more"));
  CHECK(contains(refused(right, {.dtype = DType::i32}), "f32 or f64"));
  CHECK(contains(refused(right, {.tolerance = std::nan("")}), "given are 2, 40, f64 and nan"));
  CHECK_NOTHROW(check_decoding(half_forgetful, {.tolerance = 10}));
  const LogitsFn infinite = [](const Params& params, Tensor tokens, ttt::Stream&) {
    return gather(params("table", {kVocab, kVocab}), tokens) / 0.0;
  };
  CHECK(contains(message_of<ValueError>([&] { check_decoding(infinite); }), "at token 0; give parameters"));
  CHECK(contains(refused(LogitsFn()), "empty function"));
  const LogitsFn flat = [](const Params& params, Tensor tokens, ttt::Stream&) {
    return reshape(gather(params("table", {kVocab, kVocab}), tokens), {-1, kVocab});
  };
  CHECK(contains(message_of<ShapeError>([&] { check_decoding(flat); }), "they must be [2, 40, vocabulary]"));
}
