// A self-modifying memory (Behrouz et al. 2025, Nested Learning, section 8.1), with matrices for memories.
// Keys, values and rates are what memories say of a token x; each memory makes a target of its own of v M:
//
//   k_t = x_t M_k,   v_t = x_t M_v,   eta_t = 1/chunk sigmoid(x_t M_eta + b)
//   loss_t = eta_t sum over M of 1/2 |k_t M - target(v_t M)|^2
//   M <- keep_t M - dloss_t/dM,   M in {M_memory, M_k, M_v, M_eta}
//   o_t = q_t M_memory   before the write (equation 86)
//
// Two pieces keep it bounded, where the paper's formulas alone diverge in training. A memory that makes its own targets can
// make them larger and larger: here a target has length 1, as keys have, and that of M_eta, a number, is its tanh. And all
// gradients of a chunk are taken at its first weights: the rates of its tokens add up to 1 at most (in a chunk of one token
// they are the paper's). So a chunk adds at most 1 to a memory's norm, whatever it reads.
//
// The inner gradient goes through the prediction k_t M alone. k, v, eta and the targets are held: constants
// of that gradient, but not of the outer one, which is how the outer loss teaches a memory what to say about
// the others. (The paper's optimiser, delta gradient descent, also takes eta_t k_t' k_t M off M.)
#include <algorithm>
#include <cmath>

#include "ops/accumulate.h"
#include "ops/numerics/functions.h"
#include "ttt/learners/bounded_chunk.h"
#include "ttt/learners/catalogue.h"

namespace nestgrad::ttt {

namespace {

class SelfModifying : public Learner {
 public:
  // Parameters: M_memory, M_k, M_v [heads, dim, dim], M_eta [heads, dim, 1]; b is eta_bias [heads, 1, 1].
  SelfModifying(const Params& params, const SystemSizes& s) {
    const Init projection = Init::lecun(s.dim);
    start_ = {matrix("M_memory", params("M_memory", {s.heads, s.dim, s.dim})),
              matrix("M_k", params("M_k", {s.heads, s.dim, s.dim}, projection)),
              matrix("M_v", params("M_v", {s.heads, s.dim, s.dim}, projection)),
              matrix("M_eta", params("M_eta", {s.heads, s.dim, 1}))};
    // Rates start at 1/32, or half of what they can be: the memories that make keys and values change slowly.
    const auto tokens = static_cast<double>(bounded_chunk("self-modifying", s));
    const double share = std::min(0.5, tokens / 32);
    bias_ = params("eta_bias", {s.heads, 1, 1}, {Init::Kind::constant, m::log(share / (1 - share))});
    most_ = 1 / tokens;
  }
  Weights init() const override { return start_; }
  Tensor predict(const Weights& w, Tensor q) const override { return matmul(q, w["M_memory"]); }

  // x_k and x_v are the token's row, or two projections of it.
  Tensor loss(const Weights& w, Tensor x_k, Tensor x_v) const override {
    const Tensor k = l2_norm(matmul(x_k, w.held("M_k"))), v = matmul(x_v, w.held("M_v"));
    const Tensor eta = most_ * sigmoid(matmul(x_k, w.held("M_eta")) + bias_);
    Tensor total;
    for (const std::string_view name : {"M_memory", "M_k", "M_v", "M_eta"}) {
      const Tensor u = matmul(v, w.held(name));
      const Tensor target = name == "M_eta" ? tanh(u) : l2_norm(u);  // a number, or a row
      const Tensor error = sum(square(matmul(k, w[name]) - target), {-1}, kKeep);
      accumulate(total, error);
    }
    return 0.5 * eta * total;
  }
  InnerOptimizer optimizer() const override { return InnerOptimizer().keep(gate("keep")); }
  Description describe() const override {
    return {"q M_memory", "eta sum 1/2 |k M - target(v M)|^2, k, v, eta by memories"};
  }

 private:
  Weights start_;
  Tensor bias_;
  double most_ = 1;  // that a rate can be
};

}  // namespace

System self_modifying() {
  return {
      .name = "self-modifying",
      .title = "Self-modifying memory",
      .source = "Behrouz et al. 2025, Nested Learning, section 8.1",
      .gates = {{.name = "keep", .shape = [](Tensor raw) { return sigmoid(raw); }, .bias = 4}},
      .learner = [](const Params& p, const SystemSizes& s) { return std::make_unique<SelfModifying>(p, s); },
      .policy =
          [](const SystemSizes& s) { return Policy{.chunk = s.chunk, .read = Policy::Read::before_write}; },
      .prepare = [](Views& views) { views.q = l2_norm(views.q); },
      .why_not = why_not_of_any_length};
}

}  // namespace nestgrad::ttt
