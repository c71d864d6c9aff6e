#include "ttt/learners/vittt.h"

#include "ttt/learners/catalogue.h"

namespace nestgrad::ttt {

InnerOptimizer vittt_optimizer(double rate) { return InnerOptimizer().normalize(Per::column, 1).scale(rate); }

Policy all_tokens_at_once() {
  return {.chunk = Policy::kWholeSequence, .update = Policy::Update::per_chunk, .average = true};
}

System vittt() {
  return {.name = "vittt",
          .title = "ViT^3, gated unit (not causal)",
          .source = "Han et al. 2025",
          .gates = {},
          .learner =
              [](const Params& p, const SystemSizes& s) {
                return std::make_unique<Composed>(glu(p, {s.heads, s.dim, 0, s.dim}), inner_product(1.0 / 3),
                                                  vittt_optimizer());
              },
          .policy = [](const SystemSizes&) { return all_tokens_at_once(); }};
}

}  // namespace nestgrad::ttt
