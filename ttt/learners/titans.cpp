// Titans' long-term memory (Behrouz et al. 2024, section 3.1), linear or a perceptron. Surprise, past and
// momentary (equation 10), and a memory that forgets (equation 13):
//
//   S_t = eta_t S_{t-1} - theta_t dloss/dM,   loss |M(k) - v|^2
//   M_t = (1 - alpha_t) M_{t-1} + S_t
//
// Gradients are taken where the chunk began (section 3.2). What is known is asked before it is changed,
// h_t = M_{t-1}(q_t), as in memory as a context (equation 21).
#include "ttt/learners/catalogue.h"

namespace nestgrad::ttt {

namespace {

Tensor gate_shape(Tensor raw) { return sigmoid(raw); }

// x + silu(x W1) W2
Model residual_mlp(const Params& params, const SystemSizes& s) {
  const Model inner = mlp(
      params, s.heads, {s.dim, 4 * s.dim, s.dim}, [](Tensor x) { return silu(x); }, "silu");
  return {"x + " + inner.text, inner.start,
          [f = inner.f](const Weights& w, Tensor x) { return x + f(w, x); }};
}

System titans(std::string name, std::string title,
              Model (*memory)(const Params& params, const SystemSizes& s)) {
  return {
      .name = std::move(name),
      .title = std::move(title),
      .source = "Behrouz et al. 2024, sections 3.1 and 3.2",
      .gates = {{.name = "rate",
                 .shape = gate_shape,
                 .bias = -4},  // theta, 0.02: a chunk's tokens step together
                {.name = "eta", .shape = gate_shape, .bias = 0},    // 0.5
                {.name = "keep", .shape = gate_shape, .bias = 4}},  // 1 - alpha, 0.98
      .learner =
          [memory](const Params& p, const SystemSizes& s) {
            return std::make_unique<Composed>(memory(p, s), squared_error(),
                                              InnerOptimizer().momentum(gate("eta")).keep(gate("keep")));
          },
      .policy =
          [](const SystemSizes& s) { return Policy{.chunk = s.chunk, .read = Policy::Read::before_write}; },
      .prepare = [](Views& views) {  // section 4.4
        views.q = l2_norm(silu(views.q));
        views.k = l2_norm(silu(views.k));
        views.v = silu(views.v);
      }};
}

}  // namespace

System titans_linear() {
  return titans("titans-linear", "Titans, linear memory", [](const Params& p, const SystemSizes& s) {
    return linear(p, {.heads = s.heads, .in = s.dim, .out = s.dim});
  });
}

System titans_mlp() { return titans("titans-mlp", "Titans, deep memory", residual_mlp); }

}  // namespace nestgrad::ttt
