#include "reproduce/experiments/few_shot_rates.h"

#include <cmath>
#include <limits>

#include "autograd/grad.h"
#include "autograd/scan.h"
#include "engine/core/random.h"
#include "models/training.h"
#include "ops/numerics/functions.h"
#include "ops/ops.h"

namespace nestgrad::reproduce {

namespace {

constexpr DType kType = DType::f32;
constexpr std::int64_t kProblems = 8, kRows = 20,
                       kWidth = 16;  // of a batch; of training, and as many of judging
constexpr int kKeptEvery = 10;       // of the states of training; the others are computed again
constexpr double kRates[] = {0.003, 0.01, 0.03, 0.1, 0.3}, kMomenta[] = {0, 0.5, 0.8, 0.9, 0.95};
constexpr std::uint64_t kChoosing = 1 << 20, kTesting = 1 << 21;  // first batches

// Two sines, to be fitted by a network that starts anew in every problem: amplitudes and phases [problems, 1, 2], places
// [problems, 2 rows, 1], then the first weights.
std::vector<Spec> problem_specs() {
  return {
      {kType, {kProblems, 1, 2}},      {kType, {kProblems, 1, 2}},      {kType, {kProblems, 2 * kRows, 1}},
      {kType, {kProblems, 1, kWidth}}, {kType, {kProblems, 1, kWidth}}, {kType, {kProblems, kWidth, kWidth}},
      {kType, {kProblems, 1, kWidth}}, {kType, {kProblems, kWidth, 1}}, {kType, {kProblems, 1, 1}}};
}

std::vector<Array> problems(std::uint64_t batch, std::uint64_t seed) {
  const std::vector<Spec> specs = problem_specs();
  const std::uint64_t stream = (0x72617465ull << 32) + 16 * batch;
  std::vector<Array> out{random_uniform(specs[0], 0.5, 1, seed, stream),
                         random_uniform(specs[1], 0, 6.28, seed, stream + 1),
                         random_uniform(specs[2], -1, 1, seed, stream + 2)};
  const double narrow = 1 / std::sqrt(static_cast<double>(kWidth));
  for (const double deviation : {2.0, 1.0, narrow, 0.0, narrow, 0.0})
    out.push_back(random_normal(specs[out.size()], 0, deviation, seed, stream + out.size()));
  return out;
}

// The mean error on the judging rows after training on the others.
Tensor error_after_training(const std::vector<Tensor>& problem, Tensor rate, Tensor momentum) {
  const Tensor frequency = concat({full(kType, {1, 1, 1}, 3.0), full(kType, {1, 1, 1}, 5.0)}, 2);
  const Tensor x = problem[2], y = sum(problem[0] * sin(x * frequency + problem[1]), {2}, kKeep);
  const auto loss = [&](const Tensors& w, std::int64_t from) {
    const auto rows = [&](Tensor t) { return slice(t, 1, from, from + kRows); };
    const Tensor hidden = tanh(matmul(tanh(matmul(rows(x), w[0]) + w[1]), w[2]) + w[3]);
    return mean(square(matmul(hidden, w[4]) + w[5] - rows(y)), {1, 2});
  };
  Tensors carries(problem.begin() + 3, problem.end());
  const std::size_t n = carries.size();
  for (std::size_t i = 0; i < n; ++i) carries.push_back(zeros(kType, carries[i].shape()));
  const ScanResult trained = scan(
      [&](const Tensors& carry, const Tensors&) -> StepOutput {
        const Tensors w(carry.begin(), carry.begin() + static_cast<std::ptrdiff_t>(n));
        const Tensors g = grad(sum(loss(w, 0)), w);
        StepOutput out{carry, {}};
        for (std::size_t i = 0; i < n; ++i) {
          out.carries[n + i] = momentum * carry[n + i] + g[i];
          out.carries[i] = w[i] - rate * out.carries[n + i];
        }
        return out;
      },
      carries, {}, {.checkpoint_every = kKeptEvery, .steps = kTrainingSteps});
  return mean(
      loss({trained.carries.begin(), trained.carries.begin() + static_cast<std::ptrdiff_t>(n)}, kRows));
}

// The mean error of a pair on batches from `first` on.
class Judge {
 public:
  Judge() {
    std::vector<Spec> specs = problem_specs();
    specs.insert(specs.end(), 2, Spec{kType, {1, 1, 1}});
    judge_ = trace(
        [](const Tensors& in) {
          return Tensors{error_after_training({in.begin(), in.end() - 2}, in[in.size() - 2], in.back())};
        },
        specs);
  }
  double error(const FoundRate& pair, std::uint64_t first, std::size_t batches, std::uint64_t seed) const {
    double sum = 0;
    for (std::size_t b = 0; b < batches; ++b) {
      std::vector<Array> in = problems(first + b, seed);
      in.push_back(Array::full(kType, {1, 1, 1}, pair.rate));
      in.push_back(Array::full(kType, {1, 1, 1}, pair.momentum));
      sum += judge_(in)[0].item();
    }
    return sum / static_cast<double>(batches);
  }

 private:
  Function judge_;
};

}  // namespace

FoundRate rate_by_gradient(int steps, std::uint64_t seed, std::vector<double>& history) {
  constexpr double first_rate = 0.01;  // and momentum .5
  Training training({.seed = seed, .adamw = {.beta2 = 0.99, .weight_decay = 0}});
  training.add(problem_specs(), [&](ParamTable& table, const std::vector<Tensor>& batch) {
    const Tensor rate =
        exp(table.get("log of the rate", {1, 1, 1}, Init{Init::Kind::constant, m::log(first_rate)}));
    const Tensor momentum = sigmoid(table.get("momentum", {1, 1, 1}, Init::zeros()));
    return Training::Objective{log(error_after_training(batch, rate, momentum))};
  });
  for (int i = 0; i < steps; ++i)
    history.push_back(
        training.step(0, problems(static_cast<std::uint64_t>(i), seed), cosine_rate(i, steps, 0, 0.05)).loss);
  const StateDict params = training.parameters();
  return {m::exp(params.at("log of the rate").item()), m::sigmoid(params.at("momentum").item())};
}

std::size_t pairs_of_grid() { return std::size(kRates) * std::size(kMomenta); }

FoundRate rate_by_grid(std::uint64_t seed) {
  const Judge judge;
  FoundRate best{};
  double least = std::numeric_limits<double>::infinity();
  for (const double rate : kRates)
    for (const double momentum : kMomenta)
      if (const double error = judge.error({rate, momentum}, kChoosing, 4, seed); error < least)
        least = error, best = {rate, momentum};
  if (!std::isfinite(least)) throw ValueError("no pair of the grid has a finite error");
  return best;
}

double log_error(const FoundRate& found, std::uint64_t seed) {
  return m::log(Judge().error(found, kTesting, 32, seed));
}

}  // namespace nestgrad::reproduce
