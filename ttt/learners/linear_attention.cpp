// Linear attention: W <- W + k' v, o = q W / sqrt(dim). It is a learner that takes one gradient step a token
// on
// -<f(k), v>; the gradient does not depend on W, so the parallel form follows.
#include "ttt/learners/catalogue.h"
#include "ttt/learners/matrix_memory.h"

namespace nestgrad::ttt {

System linear_attention() {
  return {.name = "linear-attention",
          .title = "Linear attention",
          .source = "Katharopoulos et al. 2020; Sun et al. 2024, theorem 1",
          .gates = {},
          .learner =
              [](const Params& p, const SystemSizes& s) {
                return std::make_unique<Composed>(matrix_memory(p, s), inner_product());
              },
          .policy = [](const SystemSizes&) { return Policy{.chunk = 1}; },
          .prepare = scale_queries};
}

}  // namespace nestgrad::ttt
