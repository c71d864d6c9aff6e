// Linear attention: W <- W + k' v, o = q W / sqrt(dim). It is a learner that takes one gradient step a token on
// -<f(k), v>; the gradient does not depend on W, so the parallel form follows. The sum W says nothing of the order of
// its tokens. So a layer of a transformer rotates queries and keys by their places, as RoFormer does for linear attention
// (Su et al. 2021, equation 19): with it the loss of docs/learners.md is 1.84 (seed 2), without 2.19.
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
          .prepare = scale_queries,
          .rotary_in_sequence = true};
}

}  // namespace nestgrad::ttt
