// Kimi delta attention (Kimi Team 2025, Kimi Linear, equation 1): the gated delta rule whose memory fades by feature
// of the key before it is corrected.
//
//   W <- diag(a_t) W,   W <- W - rate_t k' (k W - v),   a_t = exp(-A dt_t)
//
// a_t has a number per head and feature; its parts A and dt are those of Mamba-2 (section 4). Keys and queries are of
// length 1 (section 4). The gradient's factor stays one number a token, so the WY form takes these gates as well.
#include "ttt/learners/catalogue.h"
#include "ttt/learners/step_size.h"

namespace nestgrad::ttt {

System kimi_delta_attention() {
  return {.name = "kimi-delta-attention",
          .title = "Kimi delta attention",
          .source = "Kimi Team 2025 (Kimi Linear), equation 1",
          .gates = {sigmoid_gate("rate", 0), step_size_gate("dt", true)},
          .learner =
              [](const Params& p, const SystemSizes& s) {
                return std::make_unique<Composed>(
                    matrix_memory(p, s), half_squared_error(),
                    InnerOptimizer().keep(decay_of_step_size(p, s, "dt"), true));
              },
          .policy = [](const SystemSizes&) { return Policy{.chunk = 1}; },
          .prepare =
              [](Views& views) {
                unit_lengths(views);
                scale_queries(views);
                views.v = silu(views.v);
              }};
}

}  // namespace nestgrad::ttt
