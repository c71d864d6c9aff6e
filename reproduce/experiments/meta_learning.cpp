#include "reproduce/experiments/meta_learning.h"

#include <fmt/format.h>

#include "autograd/grad.h"
#include "ops/ops.h"

namespace nestgrad::reproduce {

namespace {

std::int64_t tasks_of(const std::vector<Tensor>& examples) { return examples[0].dim(0); }

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

Weights gradient(const FewShotProblem& problem, const Weights& w, const std::vector<Tensor>& examples) {
  return grad(sum(problem.loss(w, examples)), w);
}

}  // namespace

Weights of_tasks(const Weights& start, std::int64_t tasks) {
  Weights out;
  for (const Tensor s : start) out.push_back(broadcast_to(s, {tasks, s.dim(0), s.dim(1)}));
  return out;
}

Weights rates_of(ParamTable& table, const Weights& start, double rate) {
  Weights out;
  for (std::size_t i = 0; i < start.size(); ++i)
    out.push_back(table.get(fmt::format("rate{}", i), start[i].shape(), Init{Init::Kind::constant, rate}));
  return out;
}

Weights step(const FewShotProblem& problem, const Weights& w, const std::vector<Tensor>& examples,
             const std::function<Tensor(std::size_t, Tensor)>& change) {
  const Weights g = gradient(problem, w, examples);
  Weights out;
  for (std::size_t i = 0; i < w.size(); ++i) out.push_back(w[i] - change(i, g[i]));
  return out;
}

Training::ObjectiveFn maml(FewShotProblem problem, int steps, bool first_order) {
  return [=](ParamTable& table, const std::vector<Tensor>& batch) {
    const std::vector<Tensor> learnt = problem.learnt(batch);
    Weights w = of_tasks(problem.start(table), tasks_of(learnt));
    for (int i = 0; i < steps; ++i)
      w = step(problem, w, learnt,
               [&](std::size_t, Tensor g) { return problem.rate * (first_order ? stop_gradient(g) : g); });
    return Training::Objective{mean(problem.loss(w, problem.judged(batch)))};
  };
}

Training::ObjectiveFn learned_rates(FewShotProblem problem, int steps) {
  return [=](ParamTable& table, const std::vector<Tensor>& batch) {
    const std::vector<Tensor> learnt = problem.learnt(batch);
    const Weights start = problem.start(table), rates = rates_of(table, start, problem.rate);
    Weights w = of_tasks(start, tasks_of(learnt));
    for (int i = 0; i < steps; ++i)
      w = step(problem, w, learnt, [&](std::size_t k, Tensor g) { return rates[k] * g; });
    return Training::Objective{mean(problem.loss(w, problem.judged(batch)))};
  };
}

Training::ObjectiveFn reptile(FewShotProblem problem, int steps) {
  return [=](ParamTable& table, const std::vector<Tensor>& batch) {
    const std::vector<Tensor> learnt = problem.learnt(batch), judged = problem.judged(batch);
    const Weights before = of_tasks(problem.start(table), tasks_of(learnt));
    Weights w = before;
    for (int i = 0; i < steps; ++i)
      w = step(problem, w, i % 2 ? judged : learnt, [&](std::size_t, Tensor g) { return problem.rate * g; });
    Training::Objective out{mean(problem.loss(w, judged))};
    for (std::size_t i = 0; i < w.size(); ++i)
      out.gradients.push_back(mean((before[i] - w[i]) * (1 / (steps * problem.rate)), 0));
    return out;
  };
}

Training::ObjectiveFn implicit_maml(FewShotProblem problem, double proximity, int steps, int solving) {
  return [=](ParamTable& table, const std::vector<Tensor>& batch) {
    constexpr double longest = 0.1;  // step, where the curvature is small or negative
    const std::vector<Tensor> learnt = problem.learnt(batch), judged = problem.judged(batch);
    const Weights before = of_tasks(problem.start(table), tasks_of(learnt));
    Weights w = before;
    for (int i = 0; i < steps; ++i) {
      Weights g = gradient(problem, w, learnt);
      const Weights inner = g;
      for (std::size_t k = 0; k < w.size(); ++k) g[k] += proximity * (w[k] - before[k]);
      for (Tensor& t : g) t = stop_gradient(t);
      // To the minimum along the gradient, of the parabola that value, slope and curvature give.
      const Tensor squares = dot(g, g), curvature = dot(g, grad(sum(dot(inner, g)), w)) + proximity * squares;
      w = add(w, -(squares / max(curvature, squares * (1 / longest) + 1e-30)), g);
      for (Tensor& t : w) t = stop_gradient(t);
    }
    const Weights of_inner = gradient(problem, w, learnt);
    // (I + H / lambda) v
    const auto times_a = [&](const Weights& v) {
      const Weights image = grad(sum(dot(of_inner, v)), w);
      Weights out;
      for (std::size_t k = 0; k < v.size(); ++k) out.push_back(v[k] + image[k] * (1 / proximity));
      return out;
    };
    const Weights solved = conjugate_gradients(times_a, gradient(problem, w, judged), solving);
    Training::Objective out{mean(problem.loss(w, judged))};
    for (const Tensor t : solved) out.gradients.push_back(mean(t, 0));
    return out;
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

}  // namespace nestgrad::reproduce
