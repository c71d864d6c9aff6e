// LaCT (Zhang et al. 2025): a SwiGLU learns in large chunks, f(x) = (silu(x W0) * (x W2)) W1, loss -<f(k),
// v>, with rates of their own for the three matrices ("rate.W0", ..).
#pragma once

#include "ttt/optimizer.h"

namespace nestgrad::ttt {

struct LactOptions {
  bool momentum = true;  // the gate "momentum", averaged over a chunk
  bool muon = true;
  bool muon_in_f64 = false;  // see orthogonalize()
  bool prenorm = false;      // the step is made on an unnormalised master copy
};
InnerOptimizer lact_optimizer(const LactOptions& options = {});
// View synthesis: the whole sequence at once; without steps the gradient is still divided by its norm.
InnerOptimizer lact_nvs_optimizer(int muon_steps = 5, bool muon_in_f64 = false);

}  // namespace nestgrad::ttt
