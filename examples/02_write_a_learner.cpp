// 02_write_a_learner: a learner is written as forward and loss; the engine derives the rest.
//
// TwoLayer below has no gradient in it. The program runs it along a sequence in the primal form (every
// token's weights materialised) and in the dual form (derived from the trace: masked products), takes the
// outer gradient through each, and prints how far apart they are and how much graph each needs.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "engine/random.h"
#include "examples/common/program.h"
#include "models/traced_model.h"
#include "nestgrad.h"

using namespace nestgrad;

namespace {

// f(x) = tanh(x W1) W2, loss 1/2 |f(k) - v|^2.
class TwoLayer : public ttt::Learner {
 public:
  TwoLayer(const Params& params, std::int64_t heads, std::int64_t dim)
      : W1_(params("W1", {heads, dim, dim}, Init::normal(0.3))),
        W2_(params("W2", {heads, dim, dim}, Init::normal(0.3))) {}
  ttt::Weights init() const override { return {ttt::matrix("W1", W1_), ttt::matrix("W2", W2_)}; }
  Tensor predict(const ttt::Weights& w, Tensor x) const override {
    return matmul(tanh(matmul(x, w["W1"])), w["W2"]);
  }

 private:
  Tensor W1_, W2_;
};

struct Result {
  std::vector<Array> values;  // outputs, then outer gradients
  std::size_t nodes, arena;
};

Result run(ttt::FormChoice form, std::int64_t time, std::int64_t mini_batch) {
  const std::int64_t batch = 2, heads = 2, dim = 8;
  const Spec rows{DType::f64, {batch, heads, time, dim}};
  const TracedModel model =
      trace_model(DType::f64, {rows, rows, rows}, [&](ParamTable& table, const std::vector<Tensor>& in) {
        const TwoLayer learner(Params(table), heads, dim);
        const ttt::Views views{
            in[0], in[1], in[2], {{"rate", full(DType::f64, {batch, heads, time, 1}, 0.1)}}, {}};
        const ttt::InnerLoopResult r =
            ttt::train_along(learner, ttt::for_batch(learner.init(), batch), views,
                             {.policy = {.chunk = mini_batch}, .form = form});
        std::vector<Tensor> out{r.output};
        for (const Tensor& g : grad(sum(square(r.output)), {table.tensors()[0], table.tensors()[1], in[1]}))
          out.push_back(g);
        return out;
      });
  const StateDict params = initial_parameters(model.params, DType::f64, 1);
  std::vector<Array> given;
  for (std::uint64_t i = 0; i < 3; ++i) given.push_back(random_normal(rows, 0, 1, 1, i));
  return {model.function(model.bind(given, {&params})), model.function.live_nodes(),
          model.function.plan().stats().arena_bytes};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Runs a learner of ten lines in its primal and its derived dual form and compares values and outer "
      "gradients.",
      "02_write_a_learner"};
  std::int64_t time = 40, mini_batch = 16;
  bool json = false;
  app.add_option("--time", time, "Tokens in the sequence")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--mini-batch", mini_batch, "Tokens in an inner gradient step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--json", json, "Last line of output: the results as a JSON object");
  return run_program(argc, argv, app, [&] {
    const Result primal = run(ttt::FormChoice::primal, time, mini_batch),
                 dual = run(ttt::FormChoice::dual, time, mini_batch);
    const char* what[] = {"output", "outer gradient of W1", "outer gradient of W2",
                          "outer gradient of the keys"};
    double worst = 0;
    for (std::size_t i = 0; i < primal.values.size(); ++i) {
      const double error = relative_error(dual.values[i], primal.values[i]);
      worst = std::max(worst, error);
      fmt::print("{:<28} dual against primal: {:.1e}\n", what[i], error);
    }
    fmt::print("graph nodes   primal {:>8}  dual {:>8}\nplan memory   primal {:>8.0f}  dual {:>8.0f} kB\n",
               primal.nodes, dual.nodes, static_cast<double>(primal.arena) / 1e3,
               static_cast<double>(dual.arena) / 1e3);
    if (json)
      fmt::print("{}\n",
                 nlohmann::ordered_json{
                     {"worst_error", worst}, {"primal_bytes", primal.arena}, {"dual_bytes", dual.arena}}
                     .dump());
    if (!(worst < 1e-12)) throw ValueError("the two forms disagree");
  });
}
