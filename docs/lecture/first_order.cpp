// Draws the picture of 04_first_order.md on standard output: a start for two tasks, learnt through one inner
// step with the full meta-gradient and with its first-order part.
//
//   build/release/bin/first_order > docs/lecture/first_order.svg
#include <fmt/format.h>
#include <nestgrad/look/report.h>
#include <nestgrad/nestgrad.h>

using namespace nestgrad;

namespace {

struct InnerTask {
  double curvature, minimum;
};

// Mean outer loss after one inner step of rate 0.1 from w0, and its gradient by w0.
Function meta_training(const std::vector<InnerTask>& tasks, bool first_order) {
  return trace(
      [&](Tensor w0) {
        Tensor outer;
        for (const auto& [curvature, minimum] : tasks) {
          const auto loss = [&](Tensor w) { return 0.5 * curvature * square(w - minimum); };
          const Tensor g = grad(loss(w0), w0);
          const Tensor after = loss(w0 - 0.1 * (first_order ? stop_gradient(g) : g));
          outer = outer.defined() ? outer + after : after;
        }
        outer = outer / static_cast<double>(tasks.size());
        return std::vector<Tensor>{outer, grad(outer, w0)};
      },
      Spec{DType::f64, {}});
}

Series run(std::string name, bool first_order) {
  const Function step = meta_training({{1, 0}, {8, 1}}, first_order);
  Series out{std::move(name), {}, {}};
  Array w0 = Array::scalar(-1);
  for (int i = 0; i <= 20; ++i) {
    const std::vector<Array> now = step({w0});
    out.x.push_back(i);
    out.y.push_back(now[0].item());
    w0 = Array::scalar(w0.item() - 0.2 * now[1].item());
  }
  return out;
}

}  // namespace

int main() {
  fmt::print("{}", svg(Chart{.title = "Two tasks, one inner step: the start learnt with each gradient",
                             .x_label = "outer step",
                             .y_label = "mean outer loss",
                             .series = {run("full meta-gradient", false), run("first order", true)}}));
}
