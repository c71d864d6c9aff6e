#include "ttt/learners/mesa_net.h"

#include <fmt/format.h>

#include "ttt/learners/catalogue.h"
#include "ttt/learners/matrix_memory.h"

namespace nestgrad::ttt {

namespace {

constexpr int kConjugateGradientSteps = 30;
constexpr double kSafe = 1e-5;  // added to what is divided by

Tensor dot(Tensor a, Tensor b) { return sum(a * b, {-1}, kKeep); }

}  // namespace

MesaNet::MesaNet(Weights start, Tensor lamb, int steps)
    : start_(std::move(start)), lamb_(lamb), steps_(steps) {
  if (steps < 0)
    throw ConfigError(fmt::format("[mesa] there must be at least 1 step (0: exact), there are {}", steps));
}

Weights MesaNet::memories(DType dtype, std::int64_t heads, std::int64_t dim, std::int64_t out) {
  return {matrix("H_kk", zeros(dtype, {heads, dim, dim})), matrix("H_kv", zeros(dtype, {heads, dim, out}))};
}

// x (H_kk + diag(lamb)) = q; the matrix is symmetric.
Tensor MesaNet::solved(const Weights& w, Tensor q) const {
  if (steps_ == kExact) {
    return transpose(solve(w["H_kk"] + lamb_ * eye(q.dtype(), q.dim(-1)), transpose(q)));
  }
  Tensor x = zeros(q.dtype(), q.shape()), residual = q, direction = q, length = dot(q, q);
  for (int step = 0; step < steps_; ++step) {
    const Tensor image = matmul(direction, w["H_kk"]) + lamb_ * direction;
    const Tensor rate = length / (dot(direction, image) + kSafe);
    x = x + rate * direction;
    residual = residual - rate * image;
    const Tensor left = dot(residual, residual);
    direction = residual + left / (length + kSafe) * direction;
    length = left;
  }
  return x;
}

Tensor MesaNet::predict(const Weights& w, Tensor q) const { return matmul(solved(w, q), w["H_kv"]); }

// Its gradients are -k' k and -k' v: the memories are sums over the tokens.
Tensor MesaNet::loss(const Weights& w, Tensor k, Tensor v) const {
  return -(dot(matmul(k, w["H_kk"]), k) + dot(matmul(k, w["H_kv"]), v));
}

Learner::Description MesaNet::describe() const {
  return {fmt::format("x (H_kk + diag(lamb))^-1 H_kv, {}",
                      steps_ == kExact
                          ? "solved exactly"
                          : fmt::format("{} steps of conjugate gradients from 0, {} added to what is "
                                        "divided by",
                                        steps_, kSafe)),
          "-<k H_kk, k> - <k H_kv, v>"};
}

namespace {

System mesa(std::string name, std::string title, int steps) {
  return {.name = std::move(name),
          .title = std::move(title),
          .source = "von Oswald et al. 2025, section 3",
          .gates = {sigmoid_gate("rate", 0), sigmoid_gate("forget", 4)},
          .learner =
              [=](const Params& p, const SystemSizes& s) {
                const Tensor lamb = softplus(p("lamb", {s.heads, 1, s.dim}, Init::zeros())) + 0.25;
                return std::make_unique<MesaNet>(MesaNet::memories(p.dtype(), s.heads, s.dim, s.dim), lamb,
                                                 steps);
              },
          .policy = [](const SystemSizes&) { return Policy{.chunk = 1}; },
          .prepare = unit_lengths,
          .why_not =
              [](const Policy& policy) {
                return policy.ascent
                           ? "H_kk would be -sum k' k, and H_kk + diag(lamb) no longer positive definite, "
                             "as solving for it requires; leave ascent at false"
                           : "";
              }};
}

}  // namespace

System mesa_net() { return mesa("mesa-net", "MesaNet", kConjugateGradientSteps); }
System mesa_net_exact() { return mesa("mesa-net-exact", "MesaNet, solved exactly", MesaNet::kExact); }

}  // namespace nestgrad::ttt
