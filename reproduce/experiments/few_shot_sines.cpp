#include "reproduce/experiments/few_shot_sines.h"

#include <cmath>
#include <numbers>

#include "engine/core/random.h"
#include "ops/ops.h"

namespace nestgrad::reproduce {

namespace {

constexpr DType kType = DType::f32;
constexpr std::int64_t kWidth = 40;

Weights start_weights(ParamTable& table) {
  const double narrow = std::sqrt(2.0 / kWidth);
  return {table.get("W1", {1, kWidth}, Init::normal(0.3)),
          table.get("b1", {1, kWidth}, Init::normal(0.5)),
          table.get("W2", {kWidth, kWidth}, Init::normal(narrow)),
          table.get("b2", {1, kWidth}, Init::zeros()),
          table.get("W3", {kWidth, 1}, Init::normal(narrow)),
          table.get("b3", {1, 1}, Init::zeros())};
}

struct Points {
  Tensor x, y;
};
Points points_of(const std::vector<Tensor>& batch) { return {batch[2], batch[0] * sin(batch[2] - batch[1])}; }
// The first or the second half.
Points half(const Points& all, int which) {
  const std::int64_t n = all.x.dim(1) / 2;
  return {slice(all.x, 1, which * n, (which + 1) * n), slice(all.y, 1, which * n, (which + 1) * n)};
}

// Of each task.
Tensor loss(const Weights& w, const Points& p) {
  const Tensor hidden = relu(matmul(relu(matmul(p.x, w[0]) + w[1]), w[2]) + w[3]);
  return mean(square(matmul(hidden, w[4]) + w[5] - p.y), {1, 2});
}

}  // namespace

std::vector<Spec> sine_specs(std::int64_t tasks, std::int64_t points) {
  return {{kType, {tasks, 1, 1}}, {kType, {tasks, 1, 1}}, {kType, {tasks, points, 1}}};
}

std::vector<Array> sine_tasks(std::int64_t tasks, std::int64_t points, Purpose purpose, std::uint64_t batch,
                              std::uint64_t seed) {
  const std::vector<Spec> specs = sine_specs(tasks, points);
  const std::uint64_t stream =
      (0x73696e65ull << 32) + (static_cast<std::uint64_t>(purpose) << 28) + 4 * batch;
  return {random_uniform(specs[0], 0.1, 5, seed, stream),
          random_uniform(specs[1], 0, std::numbers::pi, seed, stream + 1),
          random_uniform(specs[2], -5, 5, seed, stream + 2)};
}

Training::ObjectiveFn pretraining_on_sines() {
  return [](ParamTable& table, const std::vector<Tensor>& batch) {
    return Training::Objective{mean(loss(of_tasks(start_weights(table), batch[0].dim(0)), points_of(batch)))};
  };
}

FewShotProblem sine_problem() {
  const auto examples = [](const Points& p) { return std::vector<Tensor>{p.x, p.y}; };
  return {.start = start_weights,
          .learnt = [=](const std::vector<Tensor>& batch) { return examples(half(points_of(batch), 0)); },
          .judged = [=](const std::vector<Tensor>& batch) { return examples(half(points_of(batch), 1)); },
          .loss =
              [](const Weights& w, const std::vector<Tensor>& e) {
                return loss(w, Points{e[0], e[1]});
              },
          .rate = kInnerRate};
}

std::vector<double> errors_by_step(const StateDict& params, double rate, Purpose purpose,
                                   std::uint64_t seed) {
  constexpr std::int64_t tasks = 100, asked = 50;
  constexpr std::uint64_t batches = 5;
  std::vector<Spec> specs = sine_specs(tasks, kPoints + asked);
  specs.push_back({kType, {}});
  const bool learned = params.contains("rate0");
  const FewShotProblem problem = sine_problem();
  const TracedModel model = trace_model(kType, specs, [&](ParamTable& table, const std::vector<Tensor>& in) {
    const Points all = points_of(in);
    const auto part = [&](std::int64_t from, std::int64_t to) {
      return Points{slice(all.x, 1, from, to), slice(all.y, 1, from, to)};
    };
    const Points known = part(0, kPoints), unknown = part(kPoints, kPoints + asked);
    const Weights start = start_weights(table),
                  rates = learned ? rates_of(table, start, kInnerRate) : Weights();
    Weights w = of_tasks(start, tasks);
    std::vector<Tensor> out{mean(loss(w, unknown))};
    for (int i = 0; i < kMostSteps; ++i) {
      w = step(problem, w, {known.x, known.y},
               [&](std::size_t k, Tensor g) { return (learned ? rates[k] : in[3]) * g; });
      out.push_back(mean(loss(w, unknown)));
    }
    return out;
  });
  Plan plan = model.function.plan({.device = Device::cpu()});
  std::vector<double> out(kMostSteps + 1);
  for (std::uint64_t b = 0; b < batches; ++b) {
    std::vector<Array> in = sine_tasks(tasks, kPoints + asked, purpose, b, seed);
    in.push_back(Array::scalar(rate, kType));
    const std::vector<Array> found = plan.run(model.bind(in, {&params}));
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += found[i].item() / static_cast<double>(batches);
  }
  return out;
}

}  // namespace nestgrad::reproduce
