// In-place test-time training (Feng et al. 2026, sections 3.1 and 3.2): the down-projection of a gated perceptron is the
// fast weight, the two projections before it stay. A chunk is read with the weights from before it, then learnt from:
//
//   Z = silu(H W_gate) * (H W_up),   O = Z W_down,   W_down <- W_down + sum_t rate_t Z_t' v_{t+1}
//
// The loss is -<Z_t W_down, v_{t+1}>, whose target is aligned with the next token: a layer pairs each value with the
// key of the token before (System::delayed_keys), the paper's convolution with its one tap on the next token. No
// gradient depends on W_down, so all chunks can be worked on at once, as in the paper's algorithm 1.
// Other than there: the pair that spans two chunks is learnt with the second and not dropped, values are made of the
// layer's input and not of the tokens' embeddings, every head has a perceptron of its own, and each token a rate.
#include <cmath>

#include "ttt/learners/catalogue.h"
#include "ttt/learners/matrix_memory.h"

namespace nestgrad::ttt {

namespace {

Model down_projection(const Params& params, const SystemSizes& s) {
  const std::int64_t hidden = 2 * s.dim;
  const Tensor gate = params("W_gate", {s.heads, s.dim, hidden}, Init::lecun(s.dim));
  const Tensor up = params("W_up", {s.heads, s.dim, hidden}, Init::lecun(s.dim));
  return {
      "(silu(x W_gate) * (x W_up)) W_down, W_down fast",
      {matrix("W_down", params("W_down", {s.heads, hidden, s.dim}, Init::lecun(hidden)))},
      [=](const Weights& w, Tensor x) { return matmul(silu(matmul(x, gate)) * matmul(x, up), w["W_down"]); }};
}

}  // namespace

System in_place_ttt() {
  return {.name = "in-place-ttt",
          .title = "In-place TTT (down-projection)",
          .source = "Feng et al. 2026, equation 1 and section 3.2",
          .gates = {{.name = "rate", .shape = [](Tensor raw) { return softplus(raw); }, .bias = -5}},
          .learner =
              [](const Params& p, const SystemSizes& s) {
                return std::make_unique<Composed>(down_projection(p, s), inner_product());
              },
          .policy =
              [](const SystemSizes& s) {
                return Policy{.chunk = s.chunk,
                              .update = Policy::Update::per_chunk,
                              .read = Policy::Read::before_write};
              },
          .delayed_keys = true,
          .attention_beside = true};
}

}  // namespace nestgrad::ttt
