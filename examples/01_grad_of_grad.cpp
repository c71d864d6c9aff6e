// 01_grad_of_grad: a gradient is a graph like any other, so it has a gradient too.
//
// f(x) = sum of tanh(x)^2. The program prints f, its gradient and the gradient of the sum of its gradient,
// each as the graph that the engine built and as numbers, beside the closed forms.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/io/file.h"
#include "nestgrad.h"
#include "programs/program.h"

using namespace nestgrad;

namespace {

Tensor f(Tensor x) { return sum(square(tanh(x))); }
Tensor df(Tensor x) { return grad(f(x), x); }
Tensor ddf(Tensor x) { return grad(sum(df(x)), x); }

double closed_form(int order, double x) {
  const double t = std::tanh(x), s = 1 - t * t;  // tanh' = 1 - tanh^2
  return order == 0 ? t * t : order == 1 ? 2 * t * s : 2 * s * (1 - 3 * t * t);
}

std::string numbers(const std::vector<double>& values) {
  std::string out;
  for (double v : values) out += fmt::format("{:>22.16g}", v);
  return out;
}

// Runs one function, prints it, and returns how far it is from the closed form.
double show(const std::string& title, const Function& function, int order, const Array& x) {
  const std::vector<double> got = function(x).to_vector();
  std::vector<double> expected;
  for (double v : x.to_vector()) expected.push_back(closed_form(order, v));
  if (order == 0) expected = {expected[0] + expected[1] + expected[2]};
  double error = 0;
  for (std::size_t i = 0; i < got.size(); ++i) error = worse(error, std::abs(got[i] - expected[i]));
  fmt::print("{}\n\n{}\nvalue      {}\nclosed form{}\nplanned as {} instructions\n\n", title, function.str(),
             numbers(got), numbers(expected), function.plan().stats().instructions);
  return error;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Prints a function, its gradient and its second gradient, as graphs and as numbers.\n"
      "In the graphs, level says who wrote a node: 0 the program, 1 its derivative, 2 the derivative of "
      "that.",
      "01_grad_of_grad"};
  std::vector<double> point = {-1, 0.5, 2};
  std::string dot;
  bool json = false;
  app.add_option("--x", point, "Where to evaluate: three numbers")->expected(3)->capture_default_str();
  app.add_option("--dot", dot, "Write the graph of the second gradient to this file, in DOT, levels coloured")
      ->check(not_empty);
  app.add_flag("--json", json, "Last line of output: the largest errors as a JSON object");
  return run_program(argc, argv, app, [&] {
    const Spec spec{DType::f64, {3}};
    const Array x = Array::of(point, {3});
    const Function second = trace(ddf, spec);
    const double errors[] = {show("f(x) = sum of tanh(x)^2", trace(f, spec), 0, x),
                             show("its gradient", trace(df, spec), 1, x),
                             show("the gradient of the sum of its gradient", second, 2, x)};
    if (!dot.empty()) write_file_atomically(dot, second.dot());
    if (json)
      fmt::print("{}\n",
                 nlohmann::ordered_json{
                     {"f_error", errors[0]}, {"grad_error", errors[1]}, {"second_grad_error", errors[2]}}
                     .dump());
    for (double e : errors)
      if (!(e < 1e-12)) throw ValueError("the engine and the closed form disagree");
  });
}
