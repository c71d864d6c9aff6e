// Cases that the tests of policies share, and what they are held to.
#pragma once

#include "tests/ttt/methods.h"

namespace nestgrad::testing {

using ttt::gate;
using ttt::Per;
using Read = Policy::Read;
using Update = Policy::Update;
using Meta = Policy::Meta;

const std::vector<FormChoice> kRecurrent{FormChoice::primal, FormChoice::dual};

inline std::string wrong(const LoopCase& loop, const std::vector<FormChoice>& forms, int order,
                         std::int64_t block = 4) {
  const std::string bad = differing(loop, numbers(loop, by_hand(), order), order, forms, block);
  return bad.empty() ? bad : loop.method.name + ", " + loop.policy.str() + ": " + bad;
}

inline Method with_gates() {  // momentum and forgetting, averaged over each chunk
  for (const Method& method : linear_methods({}))
    if (method.name == "Titans") return method;
  return {};
}

// Optimisers of the rungs; the weight norm, Muon and momentum as asked for.
inline Method rung(bool norm, bool muon, bool momentum) {
  Method out{"rung", {}, {}};
  if (momentum) out.gates.push_back({"momentum"});
  out.make = [=](const Params&) {
    InnerOptimizer optimizer;
    if (momentum) optimizer.momentum(gate("momentum"));
    if (muon) optimizer.muon(ttt::muon_published(2), 1e-3);
    if (norm) optimizer.weight_norm();
    Hand hand{.start = [=](Tensor w) {
      Tensors out_{w};
      if (momentum) out_.push_back(nothing(w));
      if (norm && w.dim(-2) > 1) out_.push_back(column_norm(w));
      return out_;
    }};
    hand.step = [=](Tensors& w, Tensor g, const Now& now) {
      if (momentum) g = w[1] = now("momentum") * w[1] + g;
      const bool is_matrix = w[0].dim(-2) > 1;
      if (muon && is_matrix)
        g = newton_schulz(g, {{3.4445, -4.7750, 2.0315}, {3.4445, -4.7750, 2.0315}}, 1e-3);
      const Tensor next = w[0] - g;
      w[0] = norm && is_matrix ? next / (column_norm(next) + 1e-5) * w.back() : next;
    };
    return std::pair(optimizer, hand);
  };
  return out;
}

}  // namespace nestgrad::testing
