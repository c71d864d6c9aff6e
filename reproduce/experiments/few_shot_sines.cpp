#include "reproduce/experiments/few_shot_sines.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "autograd/grad.h"
#include "engine/core/random.h"
#include "ops/ops.h"

namespace nestgrad::reproduce {

namespace {

constexpr DType kType = DType::f32;
constexpr std::int64_t kWidth = 40;
constexpr double kProximity = 10;  // of implicit MAML, lambda

Weights start_weights(ParamTable& table) {
  const double narrow = std::sqrt(2.0 / kWidth);
  return {table.get("W1", {1, kWidth}, Init::normal(0.3)),
          table.get("b1", {1, kWidth}, Init::normal(0.5)),
          table.get("W2", {kWidth, kWidth}, Init::normal(narrow)),
          table.get("b2", {1, kWidth}, Init::zeros()),
          table.get("W3", {kWidth, 1}, Init::normal(narrow)),
          table.get("b3", {1, 1}, Init::zeros())};
}

Weights start_rates(ParamTable& table, const Weights& start) {
  Weights out;
  for (std::size_t i = 0; i < start.size(); ++i)
    out.push_back(
        table.get(fmt::format("rate{}", i), start[i].shape(), Init{Init::Kind::constant, kInnerRate}));
  return out;
}

// Each task has its own.
Weights of_tasks(const Weights& start, std::int64_t tasks) {
  Weights out;
  for (const Tensor s : start) out.push_back(broadcast_to(s, {tasks, s.dim(0), s.dim(1)}));
  return out;
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

Weights step(const Weights& w, const Points& points,
             const std::function<Tensor(std::size_t, Tensor)>& change) {
  const Weights g = grad(sum(loss(w, points)), w);
  Weights out;
  for (std::size_t i = 0; i < w.size(); ++i) out.push_back(w[i] - change(i, g[i]));
  return out;
}

// Of a task's weights together, [tasks, 1, 1].
Tensor dot(const Weights& a, const Weights& b) {
  Tensor out = sum(a[0] * b[0], {1, 2}, kKeep);
  for (std::size_t i = 1; i < a.size(); ++i) out += sum(a[i] * b[i], {1, 2}, kKeep);
  return out;
}

Weights add(const Weights& a, Tensor scale, const Weights& b) {
  Weights out;
  for (std::size_t i = 0; i < a.size(); ++i) out.push_back(a[i] + scale * b[i]);
  return out;
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

OuterTraining::ObjectiveFn maml(bool first_order) {
  return [first_order](ParamTable& table, const std::vector<Tensor>& batch) {
    const Points all = points_of(batch);
    const Weights w =
        step(of_tasks(start_weights(table), batch[0].dim(0)), half(all, 0),
             [&](std::size_t, Tensor g) { return kInnerRate * (first_order ? stop_gradient(g) : g); });
    return OuterTraining::Objective{mean(loss(w, half(all, 1)))};
  };
}

OuterTraining::ObjectiveFn learned_rates() {
  return [](ParamTable& table, const std::vector<Tensor>& batch) {
    const Points all = points_of(batch);
    const Weights start = start_weights(table), rates = start_rates(table, start);
    const Weights w = step(of_tasks(start, batch[0].dim(0)), half(all, 0),
                           [&](std::size_t i, Tensor g) { return rates[i] * g; });
    return OuterTraining::Objective{mean(loss(w, half(all, 1)))};
  };
}

OuterTraining::ObjectiveFn reptile() {
  return [](ParamTable& table, const std::vector<Tensor>& batch) {
    constexpr int steps = 8;
    const Points all = points_of(batch);
    const Weights start = start_weights(table), before = of_tasks(start, batch[0].dim(0));
    Weights w = before;
    for (int i = 0; i < steps; ++i)
      w = step(w, half(all, i % 2), [](std::size_t, Tensor g) { return kInnerRate * g; });
    OuterTraining::Objective out{mean(loss(w, half(all, 1)))};
    for (std::size_t i = 0; i < w.size(); ++i)
      out.gradients.push_back(mean((before[i] - w[i]) * (1 / (steps * kInnerRate)), 0));
    return out;
  };
}

OuterTraining::ObjectiveFn implicit_maml() {
  return [](ParamTable& table, const std::vector<Tensor>& batch) {
    constexpr int steps = 10, solving = 5;
    constexpr double longest = 0.1;  // step, where the curvature is small or negative
    const Points all = points_of(batch), learnt = half(all, 0), judged = half(all, 1);
    const Weights before = of_tasks(start_weights(table), batch[0].dim(0));
    Weights w = before;
    for (int i = 0; i < steps; ++i) {
      Weights g = grad(sum(loss(w, learnt)), w);
      const Weights inner = g;
      for (std::size_t k = 0; k < w.size(); ++k) g[k] += kProximity * (w[k] - before[k]);
      for (Tensor& t : g) t = stop_gradient(t);
      // To the minimum along the gradient, of the parabola that value, slope and curvature give.
      const Tensor squares = dot(g, g),
                   curvature = dot(g, grad(sum(dot(inner, g)), w)) + kProximity * squares;
      w = add(w, -(squares / max(curvature, squares * (1 / longest) + 1e-30)), g);
      for (Tensor& t : w) t = stop_gradient(t);
    }
    const Weights of_inner = grad(sum(loss(w, learnt)), w);
    // (I + H / lambda) v
    const auto times_a = [&](const Weights& v) {
      const Weights image = grad(sum(dot(of_inner, v)), w);
      Weights out;
      for (std::size_t k = 0; k < v.size(); ++k) out.push_back(v[k] + image[k] * (1 / kProximity));
      return out;
    };
    const Weights solved = conjugate_gradients(times_a, grad(sum(loss(w, judged)), w), solving);
    OuterTraining::Objective out{mean(loss(w, judged))};
    for (const Tensor t : solved) out.gradients.push_back(mean(t, 0));
    return out;
  };
}

OuterTraining::ObjectiveFn pretraining() {
  return [](ParamTable& table, const std::vector<Tensor>& batch) {
    return OuterTraining::Objective{
        mean(loss(of_tasks(start_weights(table), batch[0].dim(0)), points_of(batch)))};
  };
}

Weights conjugate_gradients(const std::function<Weights(const Weights&)>& times_a, const Weights& b,
                            int steps) {
  // 0 where the residual is: nothing is divided by 0.
  const auto ratio = [](Tensor a, Tensor c) {
    return where(c > 0.0, a / where(c > 0.0, c, 1.0), zero_like(a));
  };
  Weights x, residual = b, direction = b;
  for (const Tensor t : b) x.push_back(zeros(t.dtype(), t.shape()));
  Tensor size = dot(residual, residual);
  for (int i = 0; i < steps; ++i) {
    const Weights image = times_a(direction);
    const Tensor along = ratio(size, dot(direction, image));
    x = add(x, along, direction);
    residual = add(residual, -along, image);
    const Tensor next = dot(residual, residual);
    direction = add(residual, ratio(next, size), direction);
    size = next;
  }
  return x;
}

std::vector<double> errors_by_step(const StateDict& params, double rate, Purpose purpose,
                                   std::uint64_t seed) {
  constexpr std::int64_t tasks = 100, asked = 50;
  constexpr std::uint64_t batches = 5;
  std::vector<Spec> specs = sine_specs(tasks, kPoints + asked);
  specs.push_back({kType, {}});
  const bool learned = params.contains("rate0");
  const TracedModel model = trace_model(kType, specs, [&](ParamTable& table, const std::vector<Tensor>& in) {
    const Points all = points_of(in);
    const auto part = [&](std::int64_t from, std::int64_t to) {
      return Points{slice(all.x, 1, from, to), slice(all.y, 1, from, to)};
    };
    const Points known = part(0, kPoints), unknown = part(kPoints, kPoints + asked);
    const Weights start = start_weights(table), rates = learned ? start_rates(table, start) : Weights();
    Weights w = of_tasks(start, tasks);
    std::vector<Tensor> out{mean(loss(w, unknown))};
    for (int i = 0; i < kMostSteps; ++i) {
      w = step(w, known, [&](std::size_t k, Tensor g) { return (learned ? rates[k] : in[3]) * g; });
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
