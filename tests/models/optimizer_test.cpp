#include "models/optimizer.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

TEST_CASE("AdamW equals the update rule written out by hand, step after step") {
  const AdamWOptions options{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 1.0};
  const std::vector<ParamSpec> specs{{"w", {2}, Init::normal(1)}, {"gain", {1}, Init::ones()}};
  const Spec two{DType::f64, {2}}, one{DType::f64, {1}}, number{DType::f64, {}};
  const Function step = trace(
      [&](const std::vector<Tensor>& in) {
        const AdamWResult r = adamw(specs, {in[0], in[1]}, {in[2], in[3]}, {in[4], in[5]}, {in[6], in[7]},
                                    {in[8], in[9], in[10]}, options);
        return std::vector<Tensor>{r.params[0], r.params[1], r.m[0], r.m[1], r.v[0], r.v[1], r.grad_norm};
      },
      {two, one, two, one, two, one, two, one, number, number, number});

  double p[3] = {0.5, -1, 2}, m[3] = {}, v[3] = {};
  std::vector<Array> state{Array::of({0.5, -1}, {2}),     Array::of({2}, {1}),
                           Array::zeros(DType::f64, {2}), Array::zeros(DType::f64, {1}),
                           Array::zeros(DType::f64, {2}), Array::zeros(DType::f64, {1})};
  for (int t = 1; t <= 4; ++t) {
    const double big = t == 3 ? 0.1 : 1;  // else the norm exceeds the clip
    const double g[3] = {3.0 * t * big, -0.1, (0.7 - t) * big}, rate = 0.1 / t;
    const double norm = std::sqrt(g[0] * g[0] + g[1] * g[1] + g[2] * g[2]),
                 clip = std::min(1.0, 1.0 / (norm + 1e-6));
    const double c1 = 1 / (1 - std::pow(0.9, t)), c2 = 1 / (1 - std::pow(0.95, t));
    for (int i = 0; i < 3; ++i) {
      m[i] = 0.9 * m[i] + 0.1 * g[i] * clip;
      v[i] = 0.95 * v[i] + 0.05 * g[i] * clip * g[i] * clip;
      const double decay = i < 2 ? 0.1 * p[i] : 0.0;  // the gain starts constant and does not decay
      p[i] -= rate * (m[i] * c1 / (std::sqrt(v[i] * c2) + 1e-8) + decay);
    }
    const std::vector<Array> out =
        step({state[0], state[1], Array::of({g[0], g[1]}, {2}), Array::of({g[2]}, {1}), state[2], state[3],
              state[4], state[5], Array::scalar(rate), Array::scalar(c1), Array::scalar(c2)});
    for (std::size_t i = 0; i < state.size(); ++i) state[i] = out[i];
    CHECK(out[6].item() == doctest::Approx(norm).epsilon(1e-12));
    CHECK(std::abs(out[0].at(0) - p[0]) < 1e-12);
    CHECK(std::abs(out[0].at(1) - p[1]) < 1e-12);
    CHECK(std::abs(out[1].at(0) - p[2]) < 1e-12);
  }
}

TEST_CASE(
    "AdamW in place: the bits of AdamW apart, no copy, and none changed where norm or loss is not finite") {
  const std::vector<ParamSpec> specs{{"w", {70, 30}, Init::normal(1)}, {"gain", {30}, Init::ones()}};
  const Spec w = f32({70, 30}), gain = f32({30}), number = f32();
  const std::vector<Spec> inputs{number, w,    gain, w,   gain,
                                 w,      gain, w,    gain};  // loss, gradients, params, m, v
  const Function step = trace(
      [&](const Tensors& in) {
        const Tensor one = constant(1.0, DType::f32);
        const AdamWResult r = adamw(specs, {in[3], in[4]}, {in[1], in[2]}, {in[5], in[6]}, {in[7], in[8]},
                                    {0.1 * one, one, one, in[0]}, {});
        return Tensors{r.grad_norm, r.params[0], r.params[1], r.m[0], r.m[1], r.v[0], r.v[1]};
      },
      inputs);
  const PlanOptions options{.device = Device::cpu(), .donate = donations(6, 1, 3)};
  Plan in_place = step.plan(options);
  CHECK(in_place.stats().arena_bytes < 4 * w.bytes());
  CHECK_FALSE(contains(in_place.str(), " copy "));
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = HUGE_VALF;
  // Of input 0, 1 or 2 the last number becomes `value`.
  const auto bits_kept = [&](std::size_t input, float value) {
    Arrays given;
    for (std::size_t i = 0; i < inputs.size(); ++i) given.push_back(random(inputs[i], i, 0.1, 1));
    given[3].as<float>()[5] = -0.0F;
    given[input].as<float>().back() = value;
    Arrays before;
    for (const Array& a : given) before.push_back(a.clone());
    const Arrays apart = step.plan({.device = Device::cpu()}).run(given), found = in_place.run(given);
    for (std::size_t k = 1; k < found.size(); ++k) {
      CHECK(found[k].same_bits(apart[k]));
      CHECK(found[k].data() == given[k + 2].data());
    }
    CHECK(std::isfinite(found[0].item()) == (input == 0 || value == 0.5F));
    return same_bits(given, before);
  };
  for (const std::size_t gradient : {1U, 2U}) {
    CHECK_FALSE(bits_kept(gradient, 0.5F));
    for (const float value : {kNan, kInfinity, -kInfinity, 3e38F})
      CHECK(bits_kept(gradient, value));  // 3e38^2
  }
  CHECK_FALSE(bits_kept(0, -3e38F));
  for (const float loss : {kNan, kInfinity, -kInfinity}) CHECK(bits_kept(0, loss));
}

TEST_CASE("options of AdamW that make no sense are refused where its step is made") {
  const Spec one{DType::f64, {1}}, number{DType::f64, {}};
  const auto step = [&](const AdamWOptions& options) {
    trace(
        [&](const std::vector<Tensor>& in) {
          return adamw({{"w", {1}, {}}}, {in[0]}, {in[1]}, {in[2]}, {in[3]}, {in[4], in[5], in[6]}, options)
              .params;
        },
        {one, one, one, one, number, number, number});
  };
  CHECK_NOTHROW(step({}));
  CHECK_THROWS_WITH_AS(step({.beta2 = 2}), "[adamw] beta2 must be at least 0 and below 1, it is 2",
                       ConfigError);
}

TEST_CASE("the learning rate warms up linearly and ends at a tenth of its peak") {
  CHECK(cosine_rate(0, 100, 10, 1.0) == doctest::Approx(0.1));
  CHECK(cosine_rate(9, 100, 10, 1.0) == doctest::Approx(1.0));
  CHECK(cosine_rate(10, 100, 10, 1.0) == doctest::Approx(1.0));
  CHECK(cosine_rate(99, 100, 10, 1.0) == doctest::Approx(0.1));
  CHECK(cosine_rate(0, 1, 0, 0.5) == doctest::Approx(0.5));
  for (int t = 11; t < 100; ++t) CHECK(cosine_rate(t, 100, 10, 1.0) < cosine_rate(t - 1, 100, 10, 1.0));
}
