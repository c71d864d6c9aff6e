// Test-time training that binds keys to values: f(x) = silu(x W1) W2, loss -<f(k), v>, a step per token, its gradient
// taken where its chunk began. The learner of which 'Test-time training with KV binding is secretly linear attention'
// shows that it is one: the last layer is linear and has no bias, so
// f(q) = phi(q) (W2 + sum_t rate_t phi_t(k_t)' v_t), with phi and phi_t read from the running W1.
//
// The loss has no minimum, and each matrix's gradient grows with the other matrix: with the gradient itself for a step,
// training is not finite after some hundred steps. One of the two layers that the paper is about, ViT^3 (Han et al. 2025),
// divides a gradient by its norm plus one. Here a token's rate is divided by what bounds its gradient g, plus one:
//
//   rate_t / (1 + s_t),   s_t^2 = |phi_t(k_t)|^2 |v_t|^2 + |v_t W2'|^2,   |g_W2| <= s_t, |g_W1| <= 1.1 s_t
//
// for keys of length 1 (1.1 is the steepest that silu is). So a token moves no matrix further than 1.1, and what the
// theorems speak of stays as it is: a number for each token times its gradient. (Dividing each gradient by its own norm
// instead trains no better, and has no dual form.)
//
// In a language model the paper's layer is LaCT's, with a sliding window of attention beside it; so is this one.
#include "ttt/learners/catalogue.h"

namespace nestgrad::ttt {

namespace {

class KvBinding : public Learner {
 public:
  // Parameters: W1 [heads, dim, 4 dim], W2 [heads, 4 dim, dim].
  KvBinding(const Params& params, const SystemSizes& s)
      : model_(mlp(
            params, s.heads, {s.dim, 4 * s.dim, s.dim}, [](Tensor x) { return silu(x); }, "silu")) {}
  Weights init() const override { return model_.start; }
  Tensor predict(const Weights& w, Tensor q) const override { return model_.f(w, q); }
  Tensor loss(const Weights& w, Tensor k, Tensor v) const override {
    return inner_product().f(model_.f(w, k), v) / (1.0 + gradient_bound(w, k, v));
  }
  Description describe() const override { return {model_.text, "-<f(k), v> / (1 + bound of its gradient)"}; }

 private:
  // s_t, [.., tokens, 1]: a constant of the inner gradient, and none of the outer one.
  static Tensor gradient_bound(const Weights& w, Tensor k, Tensor v) {
    const Tensor phi = silu(matmul(k, w.held("W1"))), back = matmul(v, w.held("W2"), {.b = true});
    const auto squares = [](Tensor x) { return sum(square(x), {-1}, kKeep); };
    const Tensor all = squares(phi) * squares(v) + squares(back);
    return all * rsqrt(all + kTiny);  // a root with a derivative at 0
  }
  static constexpr double kTiny = 1e-12;

  Model model_;
};

}  // namespace

System kv_binding() {
  return {.name = "kv-binding",
          .title = "KV binding",
          .source = "Test-time training with KV binding is secretly linear attention, Theorems 5.1 to 5.3",
          .gates = {{.name = "rate", .shape = [](Tensor raw) { return sigmoid(raw); }, .bias = -1}},
          .learner = [](const Params& p, const SystemSizes& s) { return std::make_unique<KvBinding>(p, s); },
          .policy = [](const SystemSizes& s) { return Policy{.chunk = s.chunk}; },
          .prepare =
              [](Views& views) {
                views.q = l2_norm(views.q);
                views.k = l2_norm(views.k);
              },
          .attention_beside = true};
}

}  // namespace nestgrad::ttt
