#include "models/optimizer.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "engine/core/random.h"
#include "engine/run/function.h"
#include "ops/ops.h"

using namespace nestgrad;

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

TEST_CASE("a step whose gradient or loss is not finite leaves every bit, in place too") {
  const std::vector<ParamSpec> specs{{"w", {3}, Init::normal(1)}, {"gain", {2}, Init::ones()}};
  const Spec three{DType::f32, {3}}, two{DType::f32, {2}}, number{DType::f32, {}};
  // Loss and gradients, then the parameters, their first and their second moments.
  const std::vector<Spec> given{number, three, two, three, two, three, two, three, two};
  const Function step = trace(
      [&](const std::vector<Tensor>& in) {
        const Tensor rate = constant(0.1, DType::f32), one = constant(1.0, DType::f32);
        const AdamWResult r = adamw(specs, {in[3], in[4]}, {in[1], in[2]}, {in[5], in[6]}, {in[7], in[8]},
                                    {rate, one, one, in[0]}, {});
        return std::vector<Tensor>{r.params[0], r.params[1], r.m[0], r.m[1], r.v[0], r.v[1], r.grad_norm};
      },
      given);
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  Plan plan = step.plan({.donate = adamw_in_place(specs.size(), 0, 3)});
  const auto run = [&](float loss, float gradient) {
    std::vector<Array> in;
    for (std::size_t i = 0; i < given.size(); ++i) in.push_back(random_uniform(given[i], 0.1, 1, 5, i));
    in[0].as<float>()[0] = loss;
    in[2].as<float>()[1] = gradient;
    std::vector<Array> before, after;
    for (std::size_t i = 3; i < in.size(); ++i) before.push_back(in[i].clone());
    plan.run(in);
    bool changed = false;
    for (std::size_t i = 3; i < in.size(); ++i) changed = changed || !in[i].same_bits(before[i - 3]);
    return changed;
  };
  CHECK(run(1, 0.5F));
  CHECK(run(std::numeric_limits<float>::max(), 0.5F));
  for (const float bad : {nan, inf, -inf}) {
    CHECK_FALSE(run(1, bad));
    CHECK_FALSE(run(bad, 0.5F));
  }
  CHECK_FALSE(run(1, 1e30F));  // its square is infinite
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
