// The promise: training on batches of one's own is that of AdamW, and a step that fails changes nothing.
#include "reproduce/outer_training.h"

#include <doctest/doctest.h>

#include <cmath>

#include "engine/core/error.h"
#include "ops/ops.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::reproduce;
using namespace nestgrad::testing;

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
