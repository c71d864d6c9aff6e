#include "ttt/learners/matrix_memory.h"

#include <cmath>

namespace nestgrad::ttt {

Model matrix_memory(const Params& params, const SystemSizes& s) {
  return {"x W",
          {matrix("W", zeros(params.dtype(), {s.heads, s.dim, s.dim}))},
          [](const Weights& w, Tensor x) { return matmul(x, w["W"]); }};
}

void scale_queries(Views& views) {
  views.q = views.q * (1.0 / std::sqrt(static_cast<double>(views.q.dim(-1))));
}

void unit_lengths(Views& views) {
  views.q = l2_norm(silu(views.q));
  views.k = l2_norm(silu(views.k));
}

GateSpec sigmoid_gate(std::string name, double bias) {
  return {.name = std::move(name), .shape = [](Tensor raw) { return sigmoid(raw); }, .bias = bias};
}

}  // namespace nestgrad::ttt
