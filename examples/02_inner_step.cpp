// 02_inner_step: two learners with one number to learn, small enough to check by hand.
//
// The inner learner has one weight w and takes three gradient steps. The outer loss looks at the last w and
// asks how it should have started. Its gradient is a sum: what it would be if the inner gradients were
// constants, and one term -eta h_t lambda_t for each step, because another start would have changed that
// step's gradient too.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "nestgrad.h"
#include "programs/program.h"

using namespace nestgrad;

namespace {

constexpr int kSteps = 3;

struct Problem {
  std::string name, inner_text, gradient_text, curvature_text, outer_text;
  std::function<Tensor(Tensor w)> inner, outer;
  std::function<double(double w)> gradient, curvature, wanted;  // l', l'' and L' written by hand
  double start, rate;
};

// What the engine says: w_0 .. w_3, then the derivatives of the outer loss by each, then -eta h_t lambda_t of
// each step, then the gradient of w_0 with inner gradients held constant.
std::vector<double> by_engine(const Problem& problem) {
  const auto descend = [&](Tensor w0, bool first_order) {
    std::vector<Tensor> w{w0};
    for (int t = 0; t < kSteps; ++t) {
      Tensor g = grad(problem.inner(w.back()), {w.back()})[0];
      if (first_order) g = stop_gradient(g);
      w.push_back(w.back() - problem.rate * g);
    }
    return w;
  };
  const Function f = trace(
      [&](Tensor w0) {
        const std::vector<Tensor> w = descend(w0, false);
        const std::vector<Tensor> lambda = grad(problem.outer(w.back()), w);
        std::vector<Tensor> out = w;
        out.insert(out.end(), lambda.begin(), lambda.end());
        for (std::size_t t = 0; t < kSteps; ++t)
          out.push_back(-(problem.rate * hvp(problem.inner(w[t]), {w[t]}, {lambda[t + 1]})[0]));
        out.push_back(grad(problem.outer(descend(w0, true).back()), w0));
        return out;
      },
      Spec{DType::f64, {}});
  std::vector<double> out;
  for (const Array& a : f({Array::scalar(problem.start)})) out.push_back(a.item());
  return out;
}

// The same with pencil and paper.
std::vector<double> by_hand(const Problem& problem) {
  double w[kSteps + 1] = {problem.start}, lambda[kSteps + 1], term[kSteps];
  for (int t = 0; t < kSteps; ++t) w[t + 1] = w[t] - problem.rate * problem.gradient(w[t]);
  lambda[kSteps] = problem.wanted(w[kSteps]);
  for (int t = kSteps - 1; t >= 0; --t) {
    term[t] = -problem.rate * problem.curvature(w[t]) * lambda[t + 1];
    lambda[t] = lambda[t + 1] + term[t];
  }
  std::vector<double> out(w, w + kSteps + 1);
  out.insert(out.end(), lambda, lambda + kSteps + 1);
  out.insert(out.end(), term, term + kSteps);
  out.push_back(lambda[kSteps]);
  return out;
}

// Prints the problem; returns the largest difference between engine and hand.
double show(const Problem& problem) {
  const std::vector<double> engine = by_engine(problem), hand = by_hand(problem);
  const double *w = engine.data(), *lambda = w + kSteps + 1, *term = lambda + kSteps + 1,
               first_order = term[kSteps];
  fmt::print(
      "{}\n\n  inner loss   l(w) = {}\n  gradient     l'(w) = {}\n  curvature    l''(w) = {}\n"
      "  step         w <- w - {} l'(w), three times from w = {}\n  outer loss   L = {}\n\n",
      problem.name, problem.inner_text, problem.gradient_text, problem.curvature_text, problem.rate,
      problem.start, problem.outer_text);
  fmt::print("  going forward, the learner learns:\n\n    {:>4} {:>14} {:>14} {:>14}\n", "step", "w", "l'(w)",
             "next w");
  for (int t = 0; t < kSteps; ++t)
    fmt::print("    {:>4} {:>14.9g} {:>14.9g} {:>14.9g}\n", t + 1, w[t], problem.gradient(w[t]), w[t + 1]);
  fmt::print(
      "\n  coming back, lambda is how much the outer loss wants w to change:\n\n"
      "    lambda at the end = L'(w) = {:.9g}\n\n    {:>4} {:>14} {:>22} {:>14}\n",
      lambda[kSteps], "step", "l''(w)", "-eta l''(w) lambda", "lambda before");
  for (int t = kSteps - 1; t >= 0; --t)
    fmt::print("    {:>4} {:>14.9g} {:>22.9g} {:>14.9g}\n", t + 1, problem.curvature(w[t]), term[t],
               lambda[t]);
  double sum = first_order;
  fmt::print(
      "\n  so the meta-gradient dL/dw at the start is\n\n    "
      "{:>14.9g}   first order: inner gradients are constants\n",
      first_order);
  for (int t = kSteps - 1; t >= 0; --t) {
    fmt::print("  + {:>14.9g}   through the gradient of step {}\n", term[t], t + 1);
    sum += term[t];
  }
  fmt::print("  = {:>14.9g}   and grad() of the whole program says {:.9g}\n\n", sum, lambda[0]);

  double worst = std::abs(sum - lambda[0]);
  for (std::size_t i = 0; i < hand.size(); ++i) worst = worse(worst, std::abs(engine[i] - hand[i]));
  return worst;
}

std::vector<Problem> problems() {
  return {{.name = "A quadratic: every step pulls back by the same factor",
           .inner_text = "(w - 1)^2",
           .gradient_text = "2 (w - 1)",
           .curvature_text = "2, everywhere",
           .outer_text = "(w - 0.5)^2 / 2",
           .inner = [](Tensor w) { return square(w - 1); },
           .outer = [](Tensor w) { return 0.5 * square(w - 0.5); },
           .gradient = [](double w) { return 2 * (w - 1); },
           .curvature = [](double) { return 2.0; },
           .wanted = [](double w) { return w - 0.5; },
           .start = 3,
           .rate = 0.1},
          {.name = "A quartic: the curvature depends on where the learner stands",
           .inner_text = "w^4 / 4",
           .gradient_text = "w^3",
           .curvature_text = "3 w^2",
           .outer_text = "w^2 / 2",
           .inner = [](Tensor w) { return square(square(w)) / 4; },
           .outer = [](Tensor w) { return 0.5 * square(w); },
           .gradient = [](double w) { return w * w * w; },
           .curvature = [](double w) { return 3 * w * w; },
           .wanted = [](double w) { return w; },
           .start = 1,
           .rate = 0.1}};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "A meta-gradient that can be checked by hand: a learner with one weight takes three gradient steps, "
      "and\n"
      "the gradient of what comes out is taken apart step by step.",
      "02_inner_step"};
  bool json = false;
  app.add_flag("--json", json, "Last line of output: the largest differences from the hand calculation");
  return run_program(argc, argv, app, [&] {
    nlohmann::ordered_json errors;
    double worst = 0;
    for (const Problem& problem : problems()) {
      const double error = show(problem);
      errors[problem.inner_text == "w^4 / 4" ? "quartic_error" : "quadratic_error"] = error;
      worst = worse(worst, error);
    }
    if (json) fmt::print("{}\n", errors.dump());
    if (!(worst < 1e-12)) throw ValueError("the engine and the calculation by hand disagree");
  });
}
