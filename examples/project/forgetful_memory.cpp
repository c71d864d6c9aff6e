#include "forgetful_memory.h"

using namespace nestgrad;
using namespace nestgrad::ttt;

namespace {

// f(x) = x W + b with half the squared error, W [heads, dim, dim], b [heads, 1, dim].
struct ForgetfulMemory : Learner {
  Tensor W, b;
  ForgetfulMemory(const Params& params, const SystemSizes& sizes)
      : W(params("W", {sizes.heads, sizes.dim, sizes.dim})),
        b(params("b", {sizes.heads, 1, sizes.dim}, Init::zeros())) {}

  Weights init() const override { return {matrix("W", W), row("b", b)}; }
  Tensor predict(const Weights& w, Tensor x) const override { return matmul(x, w["W"]) + w["b"]; }
  Tensor loss(const Weights& w, Tensor k, Tensor v) const override {
    return 0.5 * sum(square(predict(w, k) - v), {-1}, kKeep);
  }
  // W <- forget W - rate dloss/dW: of W every input feature forgets at its own speed, b as a whole.
  InnerOptimizer optimizer() const override { return InnerOptimizer().keep(gate("forget")); }
};

Tensor between_0_and_1(Tensor raw) { return sigmoid(raw); }

}  // namespace

System forgetful_memory() {
  return {.name = "forgetful-memory",
          .title = "Memory that forgets by feature",
          .source = "this project",
          .gates = {{.name = "rate", .shape = between_0_and_1, .bias = -2},
                    {.name = "forget.W", .per_feature = true, .shape = between_0_and_1, .bias = 4},
                    {.name = "forget.b", .shape = between_0_and_1, .bias = 4}},
          .learner = [](const Params& p,
                        const SystemSizes& s) { return std::make_unique<ForgetfulMemory>(p, s); },
          .policy = [](const SystemSizes& s) { return Policy{.chunk = s.chunk}; },
          .prepare = [](Views& views) { views.k = l2_norm(views.k), views.q = l2_norm(views.q); }};
}
