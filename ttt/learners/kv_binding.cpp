// Test-time training that binds keys to values: f(x) = silu(x W1) W2, loss -<f(k), v>, a step per token. The
// learner of which 'Test-time training with KV binding is secretly linear attention' shows that it is one:
// the last layer is linear and has no bias, so f(q) = phi(q) (W2 + sum_t rate_t phi_t(k_t)' v_t), with phi
// and phi_t read from the running W1.
#include "ttt/learners/catalogue.h"

namespace nestgrad::ttt {

System kv_binding() {
  return {.name = "kv-binding",
          .title = "KV binding",
          .source = "Test-time training with KV binding is secretly linear attention, Theorems 5.1 to 5.3",
          .gates = {{.name = "rate", .shape = [](Tensor raw) { return sigmoid(raw); }, .bias = -3}},
          .learner =
              [](const Params& p, const SystemSizes& s) {
                return std::make_unique<Composed>(
                    mlp(
                        p, s.heads, {s.dim, 4 * s.dim, s.dim}, [](Tensor x) { return silu(x); }, "silu"),
                    inner_product());
              },
          .policy = [](const SystemSizes&) { return Policy{.chunk = 1}; },
          .prepare =
              [](Views& views) {
                views.q = l2_norm(views.q);
                views.k = l2_norm(views.k);
              }};
}

}  // namespace nestgrad::ttt
