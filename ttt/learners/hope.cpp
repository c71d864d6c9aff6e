// Hope (Behrouz et al. 2025, Nested Learning, section 8.3, equations 94 to 97): self-referential Titans, whose keys,
// values, rates and forget gates are what memories say of a token x, then a continuum memory system, perceptrons that
// learn at frequencies of their own.
//
//   k_t = x_t + x_t M_k,  v_t = x_t + x_t M_v,  eta_t = sigmoid(x_t M_eta + b) / C,  alpha_t = sigmoid(x_t M_alpha + a)
//   M <- alpha_t M - eta_t k_t' k_t M - eta_t dL/dM,  L = 1/2 |k_t M - v'_t|^2       (equation 88; M of all five)
//   v'_t = v_t M, what M itself says of the value; of M_memory v_t + v_t M
//   o_t = q_t M_memory,  y_t = P_2(P_1(o_t)),  P(o) = o + gelu(o W1) W2              (equations 94, 97 and 70)
//   W <- W - sum of eta_t dL_P/dW over the last C_P tokens, every C_P tokens         (equation 71)
//   L_P = 1/2 |p / |p| - v_t|^2,  p = P_2(P_1(k_t M_memory))
//
// As in equation 90, a chunk's gradients, keys, values, rates and gates are made of the weights that it found. What makes
// k, v, eta, alpha and the targets is held: a constant of the inner gradient, but not of the outer one, which goes
// through all of it.
// What the paper leaves open, or is done to train from the start: memories are matrices (equation 93), of which M_memory,
// M_k and M_v start at 0 beside the identity (equation 89); k and v have length 1, so that no memory grows (a step
// multiplies it by alpha - 2 eta k'k + eta k'v); k'k M, like the gradients, is that of the chunk's first weights, and eta
// at most 1 / C for the C tokens that step together; chunks have 4 tokens, as with
// 16 the rate that keeps them stable learns little (2.47 instead of 2.38 nats, bigram 2.49, on a small model of
// Shakespeare); the perceptrons' loss is that of a direction, so that large weights make small steps (with 1/2 |p - v|^2
// they overflow within ten tokens of random weights); P_1 steps at every token, P_2 once a chunk, which is as slow as a
// level can be here: places are counted in a chunk.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/accumulate.h"
#include "ttt/learners/catalogue.h"

namespace nestgrad::ttt {

namespace {

constexpr const char* kMemories[] = {"M_memory", "M_k", "M_v", "M_eta", "M_alpha"};

constexpr std::int64_t kMostTokens = 4;  // of a chunk
std::int64_t tokens_of_chunk(const SystemSizes& s) {
  return std::clamp<std::int64_t>(s.chunk, 1, kMostTokens);
}

// The perceptrons of the continuum memory system, by their weights.
struct Level {
  const char *in, *out;
  bool every_token;  // or once a chunk
};
constexpr Level kLevels[] = {{"P_1.W1", "P_1.W2", true}, {"P_2.W1", "P_2.W2", false}};

class Hope : public Learner {
 public:
  Hope(const Params& params, const SystemSizes& s) : chunk_(tokens_of_chunk(s)) {
    std::vector<FastWeight> start;
    const auto memory = [&](const std::string& name, std::int64_t in, std::int64_t out, Init init) {
      start.push_back(matrix(name, params(name, {s.heads, in, out}, init)));
    };
    for (const char* name : {"M_memory", "M_k", "M_v"}) memory(name, s.dim, s.dim, Init::zeros());
    for (const char* name : {"M_eta", "M_alpha"}) memory(name, s.dim, 1, {});
    for (const Level& level : kLevels) {
      memory(level.in, s.dim, 2 * s.dim, Init::lecun(s.dim));
      memory(level.out, 2 * s.dim, s.dim, Init::lecun(2 * s.dim));
    }
    start_ = Weights(std::move(start));
    eta_bias_ = params("eta_bias", {s.heads, 1, 1}, {Init::Kind::constant, 2});
    alpha_bias_ = params("alpha_bias", {s.heads, 1, 1}, {Init::Kind::constant, 4});  // 0.98
  }

  Weights init() const override { return start_; }
  Tensor predict(const Weights& w, Tensor q) const override { return continuum(w, matmul(q, w["M_memory"])); }

  Tensor loss(const Weights& w, Tensor x_k, Tensor x_v) const override {
    const Tensor k = l2_norm(x_k + matmul(x_k, w.held("M_k"))), v = l2_norm(x_v + matmul(x_v, w.held("M_v")));
    const Tensor eta =
        sigmoid(matmul(x_k, w.held("M_eta")) + eta_bias_) * (1.0 / static_cast<double>(chunk_));
    Tensor total = error(l2_norm(continuum(w, matmul(k, w.held("M_memory")))) - v);
    for (const std::string name : kMemories) {
      const Tensor said = matmul(k, w[name]), own = matmul(v, w.held(name));
      const Tensor target = name == "M_memory" ? v + own : own;
      const Tensor part = error(said - target) + error(said);  // the second: eta k'k M
      accumulate(total, part);
    }
    return eta * total;
  }

  // A level's gradients add up ("hold") until its step ("write"); memories make one a token, and forget.
  InnerOptimizer optimizer() const override {
    return InnerOptimizer().momentum(gate("hold")).scale(gate("write")).keep(gate("keep"));
  }
  std::vector<std::string> own_gates() const override {
    std::vector<std::string> out;
    for (std::size_t i = 0; i < start_.size(); ++i)
      for (const char* name : {"hold", "write", "keep"})
        out.push_back(fmt::format("{}.{}", name, start_.at(i).name));
    return out;
  }
  Gates gates(const Weights& w, Tensor x_k, Tensor, Tensor place) const override {
    const Tensor zero = constant(0.0, x_k.dtype()), one = constant(1.0, x_k.dtype());
    const Tensor alpha = sigmoid(matmul(x_k, w.held("M_alpha")) + alpha_bias_);
    Gates out;
    for (const std::string name : kMemories)
      out["hold." + name] = zero, out["write." + name] = one, out["keep." + name] = alpha;
    const Tensor first = equal(place, 0.0), last = equal(place, static_cast<double>(chunk_ - 1));
    for (const Level& level : kLevels)
      for (const std::string name : {level.in, level.out}) {
        out["hold." + name] = level.every_token ? zero : 1.0 - first;
        out["write." + name] = level.every_token ? one : last;
        out["keep." + name] = one;
      }
    return out;
  }
  Description describe() const override {
    return {
        "P_2(P_1(q M_memory))",
        "eta (sum 1/2 |k M - v'|^2 + 1/2 |k M|^2 + 1/2 |p / |p| - v|^2), p = P_2(P_1(k M_memory)); k, v, eta by memories"};
  }

 private:
  static Tensor error(Tensor x) { return 0.5 * sum(square(x), {-1}, kKeep); }
  Tensor continuum(const Weights& w, Tensor o) const {
    for (const Level& level : kLevels) o = o + matmul(gelu(matmul(o, w[level.in])), w[level.out]);
    return o;
  }

  std::int64_t chunk_;
  Weights start_;
  Tensor eta_bias_, alpha_bias_;
};

}  // namespace

System hope() {
  return {
      .name = "hope",
      .title = "Hope (self-modifying, continuum memory)",
      .source = "Behrouz et al. 2025, Nested Learning, equations 70, 71, 88 and 94 to 97",
      .gates = {},
      .learner = [](const Params& p, const SystemSizes& s) { return std::make_unique<Hope>(p, s); },
      .policy =
          [](const SystemSizes& s) {
            return Policy{.chunk = tokens_of_chunk(s), .read = Policy::Read::before_write};
          },
      .prepare =
          [](Views& views) {
            views.q = l2_norm(silu(views.q));
            views.k = silu(views.k);
          },
      .why_not = [](const Policy& policy) -> std::string {
        if (policy.update == Policy::Update::per_chunk)
          return "its second perceptron steps once, at a place in a chunk, and one step a chunk has none: its gates "
                 "would be means over the chunk; leave update at per-token";
        if (policy.chunk >= 1 && policy.chunk <= kMostTokens) return {};
        return fmt::format("its second perceptron steps at a place in a chunk of 1 to {} tokens",
                           kMostTokens);
      }};
}

}  // namespace nestgrad::ttt
