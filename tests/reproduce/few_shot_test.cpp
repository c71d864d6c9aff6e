// The promise: what few-shot learning is measured with does what it says: sines are drawn as in the paper, linear equations
// are solved, first order and exact are the two meta-gradients, and rates are found by descending.
#include <doctest/doctest.h>

#include <cmath>
#include <numbers>

#include "engine/run/function.h"
#include "ops/ops.h"
#include "reproduce/experiments/few_shot_rates.h"
#include "reproduce/experiments/few_shot_sines.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::reproduce;
using namespace nestgrad::testing;

TEST_CASE("few-shot: tasks lie in their ranges and depend on purpose, batch and seed") {
  const std::vector<Array> tasks = sine_tasks(200, 20, Purpose::training, 5, 1);
  const double low[] = {0.1, 0, -5}, high[] = {5, std::numbers::pi, 5};
  for (std::size_t i = 0; i < 3; ++i)
    for (const double x : tasks[i].to_vector()) {
      CHECK(x >= static_cast<float>(low[i]));
      CHECK(x <= static_cast<float>(high[i]));
    }
  CHECK(sine_tasks(200, 20, Purpose::training, 5, 1)[0].same_bits(tasks[0]));
  for (const auto& other :
       {sine_tasks(200, 20, Purpose::testing, 5, 1), sine_tasks(200, 20, Purpose::training, 6, 1),
        sine_tasks(200, 20, Purpose::training, 5, 2)})
    for (std::size_t i = 0; i < 3; ++i) CHECK_FALSE(other[i].same_bits(tasks[i]));
}

TEST_CASE("few-shot: conjugate gradients solve n equations in n steps, each task's by itself") {
  const Spec b{DType::f64, {3, 4, 1}};  // the last task's equations are solved by 0
  const Function f = trace(
      [](const Tensors& in) {
        const Tensor a =
            matmul(in[1], in[1], {.b = true}) +
            constant(Array::of({1., 0., 0., 0., 0., 1., 0., 0., 0., 0., 1., 0., 0., 0., 0., 1.}, {4, 4}));
        const auto times_a = [&](const reproduce::Weights& v) { return reproduce::Weights{matmul(a, v[0])}; };
        const Tensor x = conjugate_gradients(times_a, {in[0]}, 6)[0];
        return Tensors{matmul(a, x) - in[0], x};
      },
      {b, {DType::f64, {3, 4, 4}}});
  Array right = random(b, 1, -1, 1);
  for (std::int64_t i = 8; i < 12; ++i) right.as<double>()[static_cast<std::size_t>(i)] = 0;
  const std::vector<Array> out = f({right, random({DType::f64, {3, 4, 4}}, 2, -1, 1)});
  for (const double residual : out[0].to_vector()) CHECK(std::abs(residual) < 1e-10);
  for (std::int64_t i = 8; i < 12; ++i) CHECK(out[1].at(i) == 0);
  CHECK(std::abs(out[1].at(0)) > 1e-3);
}

TEST_CASE(
    "few-shot: exact and first-order MAML start with one loss and part at the first step; learned rates start as fixed") {
  std::vector<StateDict> after;
  std::vector<double> losses;
  const std::vector<Array> batch = sine_tasks(25, 2 * kPoints, Purpose::training, 0, 0);
  for (const auto& objective :
       {maml(sine_problem(), 1, false), maml(sine_problem(), 1, true), learned_rates(sine_problem(), 1)}) {
    Training training({.seed = 0, .adamw = {.beta2 = 0.99, .weight_decay = 0, .clip = 10}});
    training.add(sine_specs(25, 2 * kPoints), objective);
    losses.push_back(training.step(0, batch, 1e-2).loss);
    after.push_back(training.parameters());
  }
  CHECK(losses[0] == losses[1]);
  CHECK(losses[0] == doctest::Approx(losses[2]).epsilon(1e-6));
  CHECK_FALSE(after[0].at("W1").same_bits(after[1].at("W1")));
  CHECK(after[2].contains("rate0"));
}

TEST_CASE(
    "few-shot: steps on a task lower its error from a trained start, learned rates that are equal are one rate") {
  Training training({.seed = 0, .adamw = {.beta2 = 0.99, .weight_decay = 0, .clip = 10}});
  training.add(sine_specs(25, 2 * kPoints), maml(sine_problem(), 1, false));
  for (std::uint64_t i = 0; i < 200; ++i)
    training.step(0, sine_tasks(25, 2 * kPoints, Purpose::training, i, 0), 1e-2);
  StateDict params = training.parameters();
  const std::vector<double> errors = errors_by_step(params, kInnerRate, Purpose::testing, 0);
  REQUIRE(errors.size() == kMostSteps + 1);
  CHECK(errors[1] < 0.7 * errors[0]);
  CHECK(errors_by_step(params, 0, Purpose::testing, 0)[kMostSteps] ==
        doctest::Approx(errors[0]).epsilon(1e-6));
  std::size_t i = 0;
  StateDict with_rates = params;
  for (const char* name : {"W1", "b1", "W2", "b2", "W3", "b3"})
    with_rates.emplace("rate" + std::to_string(i++),
                       Array::full(DType::f32, params.at(name).shape(), kInnerRate));
  const std::vector<double> same = errors_by_step(with_rates, 99, Purpose::testing, 0);
  for (std::size_t k = 0; k < errors.size(); ++k) CHECK(same[k] == doctest::Approx(errors[k]).epsilon(1e-5));
}

TEST_CASE("few-shot: the search by gradient lowers the error of a hundred steps of training") {
  std::vector<double> history;
  const FoundRate found = rate_by_gradient(12, 0, history);
  CHECK(history.size() == 12);
  CHECK(found.rate > 0.01);
  CHECK(log_error(found, 0) < log_error({0.01, 0.5}, 0) - 0.1);
}
