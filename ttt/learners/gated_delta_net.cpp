// Gated DeltaNet: the memory fades before it is corrected, W <- a W, then W <- W - rate k' (k W - v).
#include "ttt/learners/catalogue.h"
#include "ttt/learners/matrix_memory.h"

namespace nestgrad::ttt {

System gated_delta_net() {
  return {.name = "gated-delta-net",
          .title = "Gated DeltaNet",
          .source = "Yang et al. 2025, equation 10",
          .gates = {sigmoid_gate("rate", 0), sigmoid_gate("forget", 4)},
          .learner =
              [](const Params& p, const SystemSizes& s) {
                return std::make_unique<Composed>(matrix_memory(p, s), half_squared_error(),
                                                  InnerOptimizer().keep(gate("forget"), true));
              },
          .policy = [](const SystemSizes&) { return Policy{.chunk = 1}; },
          .prepare =
              [](Views& views) {
                unit_lengths(views);
                scale_queries(views);
              }};
}

}  // namespace nestgrad::ttt
