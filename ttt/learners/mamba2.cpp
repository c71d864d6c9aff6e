// Mamba-2, state space duality (Dao and Gu 2024, the selective state space model with a scalar A_t): keys are B,
// queries C, values x.
//
//   W_t = a_t W_{t-1} + dt_t B_t' x_t,   a_t = exp(-A dt_t),   y_t = C_t W_t
//
// As a learner: one step at rate dt on -<B W, x>, of which no gradient depends on W, so the parallel form (the paper's
// dual) follows. B, C and x go through silu; the short convolution before it is the backbone's (--backbone mamba).
// The layer's skip D x, which passes the memory by, is left out.
#include "ttt/learners/catalogue.h"
#include "ttt/learners/step_size.h"

namespace nestgrad::ttt {

System mamba2() {
  return {.name = "mamba-2",
          .title = "Mamba-2 (SSD)",
          .source = "Dao and Gu 2024, Transformers are SSMs",
          .gates = {step_size_gate("rate")},
          .learner =
              [](const Params& p, const SystemSizes& s) {
                return std::make_unique<Composed>(matrix_memory(p, s), inner_product(),
                                                  InnerOptimizer().keep(decay_of_step_size(p, s, "rate")));
              },
          .policy = [](const SystemSizes&) { return Policy{.chunk = 1}; },
          .prepare =
              [](Views& views) {
                for (Tensor* view : {&views.q, &views.k, &views.v}) *view = silu(*view);
              }};
}

}  // namespace nestgrad::ttt
