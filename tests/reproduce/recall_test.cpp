// The promise: an episode of recall asks for what it has shown, and training of one's own batches is that of AdamW.
#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "engine/core/error.h"
#include "ops/ops.h"
#include "reproduce/experiments/recall_episodes.h"
#include "reproduce/outer_training.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::reproduce;
using namespace nestgrad::testing;

TEST_CASE("recall: keys are different, every one is asked once, and its answer is its value") {
  constexpr std::int64_t episodes = 20, pairs = 16;
  const Episodes e = recall_episodes(episodes, pairs, 3, 7);
  const auto tokens = e.tokens.as<std::int32_t>(), answers = e.answers.as<std::int32_t>();
  bool in_order = true;
  for (std::size_t i = 0; i < episodes; ++i) {
    std::map<std::int32_t, std::int32_t> shown, asked;
    for (std::size_t p = 0; p < pairs; ++p) {
      const std::size_t at = i * 3 * pairs;
      const std::int32_t key = tokens[at + 2 * p], value = tokens[at + 2 * p + 1];
      CHECK(key >= 0);
      CHECK(key < kKeys);
      CHECK(value >= kKeys);
      CHECK(value < kBytes);
      shown[key] = value;
      asked[tokens[at + 2 * pairs + p]] = answers[i * pairs + p];
      in_order = in_order && tokens[at + 2 * pairs + p] == key;
    }
    CHECK(shown.size() == pairs);
    CHECK(asked == shown);
  }
  CHECK_FALSE(in_order);
  CHECK(recall_episodes(episodes, pairs, 3, 7).tokens.same_bits(e.tokens));
  CHECK_FALSE(recall_episodes(episodes, pairs, 4, 7).tokens.same_bits(e.tokens));
  CHECK_FALSE(recall_episodes(episodes, pairs, 3, 8).tokens.same_bits(e.tokens));
  CHECK(contains(message_of<ConfigError>([] { recall_episodes(1, kKeys + 1, 0, 0); }), "there are 128 keys"));
}

namespace {

// A point that two kinds of batches pull towards their own numbers.
OuterTraining::ObjectiveFn towards(double scale) {
  return [scale](ParamTable& table, const std::vector<Tensor>& in) {
    return OuterTraining::Objective{scale * sum(square(table.get("w", {2}, Init::zeros()) - in[0]))};
  };
}
Array numbers(double a, double b) { return Array::of({a, b}, {2}, DType::f32); }

}  // namespace

TEST_CASE(
    "outer training: the first step of AdamW moves every parameter by the rate, kinds of batches share them") {
  const Spec batch{DType::f32, {2}};
  OuterTraining training(0, {.weight_decay = 0, .clip = 1e9});
  const std::size_t one = training.add({batch}, towards(1)), two = training.add({batch}, towards(2));
  CHECK(training.step(one, {numbers(3, -4)}, 0.1) == 25);
  const std::vector<double> moved = training.parameters().at("w").to_vector();
  CHECK(moved[0] == doctest::Approx(0.1).epsilon(1e-5));
  CHECK(moved[1] == doctest::Approx(-0.1).epsilon(1e-5));
  CHECK(training.step(two, {numbers(3, -4)}, 0.1) ==
        doctest::Approx(2 * (2.9 * 2.9 + 3.9 * 3.9)).epsilon(1e-5));
  for (int i = 0; i < 300; ++i) training.step(i % 2 ? one : two, {numbers(1, 2)}, 0.05);
  CHECK(training.parameters().at("w").at(0) == doctest::Approx(1).epsilon(0.01));
  CHECK(training.parameters().at("w").at(1) == doctest::Approx(2).epsilon(0.01));
  CHECK(training.steps_done() == 302);
}

TEST_CASE("outer training: a gradient of one's own counts in the place of the loss's") {
  OuterTraining training(0, {.weight_decay = 0});
  training.add({{DType::f32, {2}}}, [](ParamTable& table, const std::vector<Tensor>& in) {
    const Tensor w = table.get("w", {2}, Init::zeros());
    return OuterTraining::Objective{sum(square(w - in[0])), {in[0]}};
  });
  training.step(0, {numbers(3, -4)}, 0.1);
  CHECK(training.parameters().at("w").at(0) == doctest::Approx(-0.1).epsilon(1e-4));
}

TEST_CASE(
    "outer training: a step that is not finite changes nothing; other parameters and batches are refused") {
  OuterTraining training(0, {.weight_decay = 0});
  training.add({{DType::f32, {2}}}, towards(1));
  training.step(0, {numbers(1, 1)}, 0.1);
  const Array before = training.parameters().at("w");
  CHECK(contains(message_of<ValueError>([&] { training.step(0, {numbers(std::nan(""), 1)}, 0.1); }),
                 "step 2: the loss is not finite"));
  CHECK(training.parameters().at("w").same_bits(before));
  CHECK(training.steps_done() == 1);
  CHECK(contains(message_of<ConfigError>([&] { training.step(0, {}, 0.1); }), "a batch of 0 arrays"));
  CHECK(contains(message_of<ConfigError>([&] {
                   training.add({{DType::f32, {2}}}, [](ParamTable& table, const std::vector<Tensor>& in) {
                     return OuterTraining::Objective{sum(table.get("other", {2}, Init::zeros()) * in[0])};
                   });
                 }),
                 "different parameters"));
}
