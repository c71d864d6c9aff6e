// Gated linear attention: W <- diag(a) W + k' v; each key feature fades at a rate of its own.
#include "ttt/learners/catalogue.h"
#include "ttt/learners/matrix_memory.h"

namespace nestgrad::ttt {

System gated_linear_attention() {
  // sigmoid(x)^(1/16): gates near 1 from the start.
  const GateSpec forget{.name = "forget", .per_feature = true, .shape = [](Tensor raw) {
                          return exp(softplus(-raw) * (-1.0 / 16));
                        }};
  return {.name = "gated-linear-attention",
          .title = "Gated linear attention",
          .source = "Yang et al. 2024, equation 3 (GLA)",
          .gates = {forget},
          .learner =
              [](const Params& p, const SystemSizes& s) {
                return std::make_unique<Composed>(matrix_memory(p, s), inner_product(),
                                                  InnerOptimizer().keep(gate("forget")));
              },
          .policy = [](const SystemSizes&) { return Policy{.chunk = 1}; },
          .prepare = scale_queries};
}

}  // namespace nestgrad::ttt
