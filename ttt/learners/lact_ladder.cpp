// The ablation ladder of "Test-time training with KV binding is secretly linear attention": LaCT, one part
// less on each rung, down to linear attention. Which form each rung has is found on its trace; nothing here
// says so.
#include <fmt/format.h>

#include "ttt/learners/catalogue.h"
#include "ttt/learners/matrix_memory.h"

namespace nestgrad::ttt {

namespace {

struct Rung {
  std::string_view title;
  bool only_last, weight_norm, single_layer, rates, momentum, muon;
};

constexpr Rung kRungs[] = {
    {"only the last layer learns", true, true, false, true, true, true},
    {"no weight normalisation", true, false, false, true, true, true},
    {"a single linear layer", false, false, true, true, true, true},
    {"one rate for all tokens", false, false, true, false, true, true},
    {"no momentum", false, false, true, false, false, true},
    {"no Muon: linear attention", false, false, true, false, false, false},
};

}  // namespace

std::vector<System> lact_ladder() {
  std::vector<System> out;
  for (const Rung& rung : kRungs) {
    InnerOptimizer step;
    if (!rung.rates) step.scale(0.1);
    if (rung.momentum) step.momentum(gate("momentum"));
    if (rung.muon) step.muon(muon_tuned());
    if (rung.weight_norm) step.weight_norm();
    System s{
        .name = fmt::format("lact-v{}", out.size() + 1),
        .title = fmt::format("LaCT ladder {}: {}", out.size() + 1, rung.title),
        .source = "the ablation ladder of 'Test-time training with KV binding is secretly linear attention'"};
    if (rung.rates) s.gates.push_back({"rate", false, [](Tensor raw) { return softplus(raw); }, -3});
    if (rung.momentum) s.gates.push_back(sigmoid_gate("momentum", 0));
    s.learner = [rung, step](const Params& p, const SystemSizes& n) {
      const Model model = rung.single_layer ? linear(p, {.heads = n.heads, .in = n.dim, .out = n.dim})
                                            : swiglu(p, {n.heads, n.dim, 2 * n.dim, n.dim});
      return std::make_unique<Composed>(model, inner_product(), step);
    };
    s.policy = [only_last = rung.only_last](const SystemSizes& n) {
      Policy policy{
          .chunk = n.chunk, .update = Policy::Update::per_chunk, .read = Policy::Read::before_write};
      if (only_last) policy.trained = {"W1"};
      return policy;
    };
    s.prepare = unit_lengths;
    s.attention_beside = true;  // as LaCT
    out.push_back(std::move(s));
  }
  return out;
}

}  // namespace nestgrad::ttt
