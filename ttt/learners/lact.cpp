#include "ttt/learners/lact.h"

#include "ttt/learners/catalogue.h"
#include "ttt/learners/matrix_memory.h"

namespace nestgrad::ttt {

InnerOptimizer lact_optimizer(const LactOptions& options) {
  InnerOptimizer step;
  if (options.momentum) step.momentum(gate("momentum"));
  if (options.muon) step.muon(muon_tuned(), 1e-7, options.muon_in_f64);
  return options.prenorm ? step.prenorm() : step.weight_norm();
}

InnerOptimizer lact_nvs_optimizer(int muon_steps, bool muon_in_f64) {
  return InnerOptimizer().muon(muon_published(muon_steps), 1e-7, muon_in_f64).weight_norm(1e-5, true);
}

namespace {

// softplus(x - 5): small rates from the start.
GateSpec rate(std::string name) {
  return {.name = std::move(name), .shape = [](Tensor raw) { return softplus(raw); }, .bias = -5};
}

System lact_system(std::string name, std::string title, InnerOptimizer optimizer, Policy policy,
                   std::int64_t rank = 0) {
  System out{.name = std::move(name),
             .title = std::move(title),
             .source = "Zhang et al. 2025, section 3",
             .gates = {rate("rate.W0"), rate("rate.W1"), rate("rate.W2")},
             .learner =
                 [=](const Params& p, const SystemSizes& s) {
                   return std::make_unique<Composed>(swiglu(p, {s.heads, s.dim, 2 * s.dim, s.dim, rank}),
                                                     inner_product(), optimizer);
                 },
             .policy =
                 [=](const SystemSizes& s) {
                   Policy own = policy;
                   if (own.chunk != Policy::kWholeSequence) own.chunk = s.chunk;
                   return own;
                 },
             .prepare = unit_lengths,
             .attention_beside = policy.chunk != Policy::kWholeSequence};  // section 3.2: window attention
  for (const std::string& needed : optimizer.gates()) out.gates.push_back(sigmoid_gate(needed, 0));
  return out;
}

Policy block_causal() { return {.update = Policy::Update::per_chunk, .read = Policy::Read::before_write}; }
Policy bidirectional() { return {.chunk = Policy::kWholeSequence, .update = Policy::Update::per_chunk}; }

}  // namespace

System lact() { return lact_system("lact", "LaCT (Muon, momentum)", lact_optimizer(), block_causal()); }

System lact_sgd() {
  return lact_system("lact-sgd", "LaCT (plain steps)", lact_optimizer({.momentum = false, .muon = false}),
                     block_causal());
}

System lact_prenorm() {
  return lact_system("lact-prenorm", "LaCT (master weights)", lact_optimizer({.prenorm = true}),
                     block_causal());
}

System lact_low_rank() {
  return lact_system("lact-low-rank", "LaCT (weights start with rank 8)", lact_optimizer(), block_causal(),
                     8);
}

System lact_nvs() {
  return lact_system("lact-nvs", "LaCT for view synthesis (not causal)", lact_nvs_optimizer(),
                     bidirectional());
}

}  // namespace nestgrad::ttt
