#include "ttt/learners/step_size.h"

#include <fmt/format.h>

namespace nestgrad::ttt {

GateSpec step_size_gate(std::string name, bool per_feature) {
  constexpr double kLeast = 0.001, kMost = 0.1;
  return {.name = std::move(name),
          .per_feature = per_feature,
          .shape = [](Tensor raw) { return softplus(raw); },
          .bias = -4.6,  // 0.01, the middle by logarithm
          .drawn_bias = Init::inverse_softplus_of_log_uniform(kLeast, kMost)};
}

Hyper decay_of_step_size(const Params& params, const SystemSizes& s, std::string name) {
  const Tensor rate = exp(params("A_log", {s.heads, 1, 1}, Init::log_of_uniform(1, 16)));
  std::string text = fmt::format("exp(-A {})", name);
  return gate(std::move(name), std::move(text), [rate](Tensor dt) { return exp(-(rate * dt)); });
}

}  // namespace nestgrad::ttt
