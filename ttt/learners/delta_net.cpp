// DeltaNet: W <- W - rate k' (k W - v), online gradient descent on 1/2 |f(k) - v|^2 (the delta rule). The
// gradient is affine in W, so a block of tokens is one triangular solve: the WY form follows.
#include "ttt/learners/catalogue.h"
#include "ttt/learners/matrix_memory.h"

namespace nestgrad::ttt {

System delta_net() {
  return {.name = "delta-net",
          .title = "DeltaNet",
          .source = "Schlag et al. 2021; Yang et al. 2024, equation 1",
          .gates = {sigmoid_gate("rate", 0)},
          .learner =
              [](const Params& p, const SystemSizes& s) {
                return std::make_unique<Composed>(matrix_memory(p, s), half_squared_error());
              },
          .policy = [](const SystemSizes&) { return Policy{.chunk = 1}; },
          .prepare =
              [](Views& views) {
                unit_lengths(views);
                scale_queries(views);
              }};
}

}  // namespace nestgrad::ttt
