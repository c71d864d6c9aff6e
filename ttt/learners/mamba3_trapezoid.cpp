// The trapezoidal rule of Mamba-3 (Lahoti et al. 2026, proposition 1), with the memory's own names:
//
//   W_t = a_t W_{t-1} + (1 - lambda_t) dt_t a_t B_{t-1}' x_{t-1} + lambda_t dt_t B_t' x_t,   a_t = exp(-A dt_t)
//
// lambda = 1 is Mamba-2's rule, 1/2 the trapezoid. As a learner: -B' x is the gradient of -<B W, x>, and the optimiser
// carries the last token's beside the weight. The step stays linear in both, so the parallel form follows.
// B and C are normalised (section 3.4). What else is new in Mamba-3, a complex state (rotations that add up along the
// sequence), biases of B and C and several inputs and outputs a head, is not here.
#include "ttt/learners/catalogue.h"
#include "ttt/learners/step_size.h"

namespace nestgrad::ttt {

namespace {

InnerOptimizer trapezoid(const Hyper& decay) {
  const auto step = [decay](Tensor g, std::span<Tensor> last, const Gates& gates) {
    const Tensor dt = gate("dt").at(gates, g), lambda = gate("lambda").at(gates, g);
    const Tensor before = last[0];
    last[0] = g;
    return (1.0 - lambda) * dt * decay.at(gates, g) * before + lambda * dt * g;
  };
  return InnerOptimizer().piece("trapezoidal rule", step, {"last gradient"}).keep(decay);
}

}  // namespace

System mamba3_trapezoid() {
  return {.name = "mamba-3-trapezoid",
          .title = "Trapezoidal rule of Mamba-3",
          .source = "Lahoti et al. 2026 (Mamba-3), proposition 1",
          .gates = {step_size_gate("dt"), sigmoid_gate("lambda", 0)},
          .learner =
              [](const Params& p, const SystemSizes& s) {
                return std::make_unique<Composed>(matrix_memory(p, s), inner_product(),
                                                  trapezoid(decay_of_step_size(p, s, "dt")));
              },
          .policy = [](const SystemSizes&) { return Policy{.chunk = 1}; },
          .prepare =
              [](Views& views) {
                views.q = rms_norm(views.q, 1.0);
                views.k = rms_norm(views.k, 1.0);
              }};
}

}  // namespace nestgrad::ttt
