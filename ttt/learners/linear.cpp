// TTT-Linear: f(x) = x + LN(x W1 + b1), with the default loss. What a System says: ttt/system.h.
#include "ttt/learners/linear.h"

#include "ttt/learners/catalogue.h"

namespace nestgrad::ttt {

Linear::Linear(const Params& params, std::int64_t heads, std::int64_t dim)
    : W1_(params("W1", {heads, dim, dim}, Init::normal(0.02))),
      b1_(params("b1", {heads, 1, dim}, Init::zeros())),
      gain_(reshape(params("ttt_norm_weight", {heads, dim}, Init::ones()), {heads, 1, dim})),
      shift_(reshape(params("ttt_norm_bias", {heads, dim}, Init::zeros()), {heads, 1, dim})) {}

Weights Linear::init() const { return {matrix("W1", W1_), row("b1", b1_)}; }

Tensor Linear::predict(const Weights& w, Tensor x) const {
  return x + layer_norm(matmul(x, w["W1"]) + w["b1"], gain_, shift_);
}

System ttt_linear() {
  return {.name = "ttt-linear",
          .title = "TTT-Linear",
          .source = "Sun et al. 2024, section 2.7",
          .learner = [](const Params& p,
                        const SystemSizes& s) { return std::make_unique<Linear>(p, s.heads, s.dim); },
          .policy = [](const SystemSizes& s) { return Policy{.chunk = s.chunk}; },
          .rotary = true,
          .position_rates = true};
}

}  // namespace nestgrad::ttt
