#include "ttt/learners/t5.h"

#include <cmath>

#include "ttt/learners/catalogue.h"
#include "ttt/learners/vittt.h"

namespace nestgrad::ttt {

Model t5_model(FastModel model, const Params& params, std::int64_t heads, std::int64_t dim,
               std::int64_t hidden) {
  const auto layers = [&](const std::vector<std::int64_t>& widths) {
    return mlp(
        params, heads, widths, [](Tensor x) { return silu(x); }, "silu");
  };
  switch (model) {
    case FastModel::gated:
      return gated(params, {heads, dim, 0, dim});
    case FastModel::two_layers:
      return layers({dim, hidden, dim});
    case FastModel::three_layers:
      return layers({dim, hidden, hidden, dim});
    case FastModel::swiglu:
      return swiglu(params, {heads, dim, hidden, dim});
  }
  throw ConfigError("[t5] no such fast model");
}

InnerLoss t5_loss(std::int64_t dim) { return inner_product(1.0 / std::sqrt(static_cast<double>(dim))); }

Tensor instance_norm(Tensor x, double eps) {
  const Tensor centred = x - mean(x, {-2}, kKeep);
  return centred * rsqrt(mean(square(centred), {-2}, kKeep) + eps);
}

std::vector<System> t5() {
  const auto one = [](std::string name, std::string title, FastModel model) {
    return System{.name = std::move(name),
                  .title = std::move(title),
                  .source = "T^5",
                  .gates = {},
                  .learner =
                      [model](const Params& p, const SystemSizes& s) {
                        return std::make_unique<Composed>(t5_model(model, p, s.heads, s.dim, s.dim),
                                                          t5_loss(s.dim), InnerOptimizer());
                      },
                  .policy = [](const SystemSizes&) { return all_tokens_at_once(); },
                  .prepare = [](Views& views) { views.k = instance_norm(views.k); }};
  };
  return {one("t5-gated", "T^5, gated layer (not causal)", FastModel::gated),
          one("t5-two-layers", "T^5, two layers (not causal)", FastModel::two_layers),
          one("t5-three-layers", "T^5, three layers (not causal)", FastModel::three_layers),
          one("t5-swiglu", "T^5, SwiGLU (not causal)", FastModel::swiglu)};
}

}  // namespace nestgrad::ttt
