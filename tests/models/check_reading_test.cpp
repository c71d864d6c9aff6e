// The promise: check_slices and check_packing accept what reads cut and packed sequences as it reads the whole, and say of anything
// else from which token on it differs, whatever it has asked the stream.
#include "models/check_reading.h"

#include <doctest/doctest.h>

#include "tests/models/model_testing.h"
#include "tests/models/own_functions.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

Tensor projected(const Params& params, Tensor h) { return matmul(h, params("head", {kWidth, kVocab})); }

// Each token and the one before.
Tensor right(const Params& params, Tensor tokens, ttt::Stream& stream) {
  const Tensor x = embedded(params, tokens);
  return projected(params, x + stream.before("row", x));
}
// Asks where tokens stand, and then adds up those that it is given.
Tensor half_forgetful(const Params& params, Tensor tokens, ttt::Stream& stream) {
  const Tensor x = embedded(params, tokens);
  const Tensor turned = rope(reshape(x, {x.dim(0), 1, x.dim(1), kWidth}), stream.positions("place", x));
  return projected(params, cumsum(reshape(turned, x.shape()), 1));
}

LogitsFn learner(const std::string& name) {
  LanguageModelConfig c{.hidden_size = 16,
                        .intermediate_size = 24,
                        .num_hidden_layers = 1,
                        .num_attention_heads = 2,
                        .ttt_layer_type = name,
                        .mini_batch_size = 4};
  c.vocab_size = kVocab;
  return language_model(c);
}

}  // namespace

TEST_CASE("check_slices and check_packing accept models that heed what stands before") {
  for (const std::int64_t slices : {2, 4}) check_slices(right, slices);
  for (const std::int64_t align : {1, 4, 20}) check_packing(right, align);
  for (const std::string name : {"ttt-linear", "delta-net", "attention"}) {
    CAPTURE(name);
    check_slices(learner(name), 2);
    check_packing(learner(name), 4);
  }
  check_slices(right, 2, {.dtype = DType::f32, .batch = 1, .tokens = 6});
}

TEST_CASE("check_slices and check_packing say from which token on a model differs that has asked for something else") {
  const std::string cut = message_of<ConfigError>([] { check_slices(half_forgetful, 4); });
  CHECK_MESSAGE(contains(cut, "cut into 4 slices the model answers something else, from token 10 on"), cut);
  CHECK_MESSAGE(contains(cut, "with_history(), before(), conv() or positions()"), cut);
  const std::string packed = message_of<ConfigError>([] { check_packing(half_forgetful, 8); });
  CHECK_MESSAGE(contains(packed, "(the second begins at token 16) the model answers something else, from token 16 on"), packed);
}

TEST_CASE("check_slices and check_packing refuse sizes that make no sense") {
  for (const std::int64_t slices : {-1, 0, 1, 3})
    CHECK(contains(message_of<ConfigError>([&] { check_slices(right, slices); }), "need 2 or more that divide them"));
  for (const std::int64_t align : {-1, 0, 21})
    CHECK(contains(message_of<ConfigError>([&] { check_packing(right, align); }), "need 1 or more, and room for two"));
  CHECK(contains(message_of<ConfigError>([] { check_packing(right, 1, {.batch = 0}); }),
                 "check_packing wants a batch of 1 or more"));
}
