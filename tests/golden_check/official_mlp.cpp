#include "tests/golden_check/official_mlp.h"

#include "ttt/learners/mlp.h"

namespace nestgrad {

namespace {

Tensor official_slope(Tensor x) {
  const Tensor t = tanh(0.79788456 * x * (1.0 + 0.044715 * square(x)));
  return 0.5 * x * ((1.0 - square(t)) * (0.79788456 + 0.1070322243 * square(x))) + 0.5 * (1.0 + t);
}

class OfficialMlp : public ttt::Mlp {
 public:
  OfficialMlp(const Params& params, std::int64_t heads, std::int64_t dim)
      : Mlp(params, heads, dim),
        gain_(reshape(params("ttt_norm_weight", {heads, dim}, Init::ones()), {heads, 1, dim})),
        shift_(reshape(params("ttt_norm_bias", {heads, dim}, Init::zeros()), {heads, 1, dim})) {}

  // With held weights z is a constant of the inner gradient, and none of the outer one. So `hidden` has the value and
  // the outer derivative of gelu(z), and in the inner gradient the official slope.
  Tensor loss(const ttt::Weights& w, Tensor k, Tensor v) const override {
    const Tensor z = matmul(k, w["W1"]) + w["b1"], held = matmul(k, w.held("W1")) + w.held("b1");
    const Tensor hidden = gelu_tanh(held) + official_slope(held) * (z - held);
    const Tensor f = k + layer_norm(matmul(hidden, w["W2"]) + w["b2"], gain_, shift_);
    return 0.5 * sum(square(f - v), {-1}, kKeep);
  }

 private:
  Tensor gain_, shift_;
};

}  // namespace

ttt::System official_ttt_mlp() {
  ttt::System out = ttt::system_named("ttt-mlp");
  out.learner = [](const Params& p, const ttt::SystemSizes& s) {
    return std::make_unique<OfficialMlp>(p, s.heads, s.dim);
  };
  return out;
}

}  // namespace nestgrad
