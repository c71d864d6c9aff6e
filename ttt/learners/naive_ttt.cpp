// The naive TTT layer, the paper's first example (Sun et al. 2024, Figure 5):
//
//   loss(f, x)   MSE(f(theta_K x), theta_V x)       the Task
//   train(x)     W <- W - rate dloss/dW             the Learner: online gradient descent
//   predict(x)   f(theta_Q x),  f(x) = x W
#include "ttt/learners/catalogue.h"

namespace nestgrad::ttt {

namespace {

constexpr double kRate = 0.1;  // keys are not normalised: a step is stable while rate |k|^2 < dim

}  // namespace

System naive_ttt() {
  return {.name = "naive-ttt",
          .title = "Naive TTT",
          .source = "Sun et al. 2024, Figure 5",
          .gates = {},
          .learner =
              [](const Params& p, const SystemSizes& s) {
                return std::make_unique<Composed>(linear(p, {.heads = s.heads, .in = s.dim, .out = s.dim}),
                                                  mean_squared_error(), InnerOptimizer().scale(kRate));
              },
          .policy = [](const SystemSizes&) { return Policy{.chunk = 1}; },
          .prepare = {}};
}

}  // namespace nestgrad::ttt
