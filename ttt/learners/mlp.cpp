#include "ttt/learners/mlp.h"

#include "ttt/learners/catalogue.h"

namespace nestgrad::ttt {

Mlp::Mlp(const Params& params, std::int64_t heads, std::int64_t dim)
    : W1_(params("W1", {heads, dim, 4 * dim}, Init::normal(0.02))),
      b1_(params("b1", {heads, 1, 4 * dim}, Init::zeros())),
      W2_(params("W2", {heads, 4 * dim, dim}, Init::normal(0.02))),
      b2_(params("b2", {heads, 1, dim}, Init::zeros())),
      gain_(reshape(params("ttt_norm_weight", {heads, dim}, Init::ones()), {heads, 1, dim})),
      shift_(reshape(params("ttt_norm_bias", {heads, dim}, Init::zeros()), {heads, 1, dim})) {}

Weights Mlp::init() const { return {matrix("W1", W1_), row("b1", b1_), matrix("W2", W2_), row("b2", b2_)}; }

Tensor Mlp::predict(const Weights& w, Tensor x) const {
  const Tensor hidden = gelu_tanh(matmul(x, w["W1"]) + w["b1"]);
  return x + layer_norm(matmul(hidden, w["W2"]) + w["b2"], gain_, shift_);
}

System ttt_mlp() {
  return {.name = "ttt-mlp",
          .title = "TTT-MLP",
          .source = "Sun et al. 2024, section 2.7",
          .gates = {},
          .learner = [](const Params& p,
                        const SystemSizes& s) { return std::make_unique<Mlp>(p, s.heads, s.dim); },
          .policy = [](const SystemSizes& s) { return Policy{.chunk = s.chunk}; },
          .prepare = {},
          .rotary = true,
          .position_rates = true};
}

}  // namespace nestgrad::ttt
