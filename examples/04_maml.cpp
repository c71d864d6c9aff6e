// 04_maml: where to start, so that three gradient steps on ten points of a sine fit all of it (Finn, Abbeel
// and Levine 2017). The meta-gradient goes through the three steps; beside it the first-order one, which
// takes the inner gradients for constants.
#include <nestgrad/nestgrad.h>

#include <cstdio>

using namespace nestgrad;

constexpr std::int64_t kTasks = 16, kPoints = 10, kWidth = 32;

// An MLP for each task. x [tasks, points, 1] -> [tasks, points, 1]
Tensor predict(const Tensors& w, Tensor x) {
  return matmul(tanh(matmul(tanh(matmul(x, w[0]) + w[1]), w[2]) + w[3]), w[4]) + w[5];
}

Tensor loss(const Tensors& w, Tensor x, Tensor y) { return mean(square(predict(w, x) - y), {1, 2}); }

// (amplitude [tasks, 1, 1], phase [tasks, 1, 1], x [tasks, 2 points, 1], start weights) -> (loss after the
// inner steps, start weights after a step of the outer training)
Tensors outer_step(const Tensors& in, bool first_order) {
  const Tensor y = in[0] * sin(in[2] + in[1]);
  const auto half = [](Tensor t, int which) { return slice(t, 1, which * kPoints, (which + 1) * kPoints); };
  const Tensors start(in.begin() + 3, in.end());
  Tensors w, out;
  for (Tensor s : start) w.push_back(broadcast_to(s, {kTasks, s.dim(0), s.dim(1)}));  // each task has its own
  for (int step = 0; step < 3; ++step) {
    const Tensors g = grad(sum(loss(w, half(in[2], 0), half(y, 0))), w);
    for (std::size_t i = 0; i < w.size(); ++i) w[i] -= 0.02 * (first_order ? stop_gradient(g[i]) : g[i]);
  }
  out = {mean(loss(w, half(in[2], 1), half(y, 1)))};
  const Tensors g = grad(out[0], start);
  for (std::size_t i = 0; i < start.size(); ++i) out.push_back(start[i] - 0.02 * clip(g[i], -1, 1));
  return out;
}

int main() {
  const Spec task{DType::f32, {kTasks, 1, 1}}, points{DType::f32, {kTasks, 2 * kPoints, 1}};
  std::vector<Spec> specs{task, task, points};
  for (const Shape& s : {Shape{1, kWidth}, {1, kWidth}, {kWidth, kWidth}, {1, kWidth}, {kWidth, 1}, {1, 1}})
    specs.push_back({DType::f32, s});
  double first[2] = {}, last[2] = {};
  for (const int exact : {0, 1}) {
    const Function step = trace([&](const Tensors& in) { return outer_step(in, !exact); }, specs);
    std::vector<Array> in(3);
    for (std::size_t i = 3; i < specs.size(); ++i) in.push_back(random_normal(specs[i], 0, 0.3, 1, i));
    for (std::uint64_t k = 0; k < 2000; ++k) {  // new tasks each time
      in[0] = random_uniform(task, 0.5, 3, k, 10), in[1] = random_uniform(task, 0, 3.14, k, 11);
      in[2] = random_uniform(points, -5, 5, k, 12);
      std::vector<Array> out = step(in);
      (k < 100 ? first : last)[exact] += out[0].item() / 100 * (k < 100 || k >= 1900);
      std::move(out.begin() + 1, out.end(), in.begin() + 3);
    }
    std::printf("%-11s  loss after three inner steps: %.4f in the first 100 outer steps, %.4f in the last\n",
                exact ? "exact" : "first order", first[exact], last[exact]);
  }
  return last[0] < first[0] && last[1] < first[1] ? 0 : 1;
}
