#include "tests/fuzz/random_learner.h"

#include <fmt/format.h>

namespace nestgrad::fuzz {

namespace {

using ttt::InnerLoss;
using ttt::WeightKind;
using ttt::Weights;
using Weight = RandomModel::Weight;

Tensor over_features(Tensor x) { return sum(x, {-1}, kKeep); }

// Those with kinks come last.
constexpr int kSmoothErrors = 8;
InnerLoss error_of(int kind, Draws& draws) {
  switch (kind) {
    case 1:
      return ttt::inner_product();
    case 2:
      return ttt::squared_error();
    case 3:
      return ttt::mean_squared_error();
    case 4:
      return ttt::cosine(kEps);
    case 5:
      return ttt::cross_entropy_with();
    case 6:
      return ttt::inner_product(0.5);
    case 7:
      return {"-<tanh f(k), v>", [](Tensor p, Tensor v) { return -over_features(tanh(p) * v); }};
    case 8:
      return ttt::huber(draws.of<double>({1, 0.3}));
    case 9:
      return ttt::lp(draws.of<double>({3, 2.5, 2}));
    case 10:
      return {"sum max(v - f(k), 0)", [](Tensor p, Tensor v) { return over_features(max(v - p, 0.0)); }};
    case 11:
      return {"sum |f(k) - v|", [](Tensor p, Tensor v) { return over_features(abs(p - v)); }};
    case 12:
      return {"the largest (f(k) - v)^2", [](Tensor p, Tensor v) { return max(square(p - v), {-1}, kKeep); }};
    default:
      return ttt::half_squared_error();
  }
}

// What a loss does besides comparing f(k) with v.
enum class Extra {
  none,
  token_weight,   // times a number of each token's key
  target_matrix,  // v + 0.3 v L, with a weight of the loss alone
  target_row,     // (f(k), v) exp(0.3 r), with a weight of the loss alone
  held_target,    // v + 0.3 tanh(k held W)
  held_weight,    // times a number that a held weight gives
  stopped,        // v - 1/2 stop(f(k))
  penalty,        // + 0.01 |W|^2: no use of W that factorises
};

struct LossPlan {
  InnerLoss error;
  bool smooth = true;
  Extra extra = Extra::none;
  std::string weight;
  std::string text() const {
    constexpr const char* kExtras[] = {"",
                                       ", times 1/2 + sigmoid(sum k)",
                                       ", v + 0.3 v {}",
                                       ", both times exp(0.3 {})",
                                       ", v + 0.3 tanh(k held {})",
                                       ", times sigmoid(sum k held {})",
                                       ", v - 1/2 stop(f(k))",
                                       ", + 0.01 |{}|^2"};
    return error.text + fmt::format(fmt::runtime(kExtras[static_cast<int>(extra)]), weight);
  }
};

// Adds the weights of the loss alone to those of the learner.
LossPlan draw_loss(Draws& draws, const RandomModel& model, std::vector<Weight>& weights, std::int64_t in,
                   std::int64_t out) {
  // A memory's loss is one whose gradient is linear in f, or does not depend on it.
  const int kind =
      model.is_memory && draws.below(4) < 3 ? draws.of<int>({0, 1, 1, 2, 6, 3}) : draws.below(13);
  LossPlan plan{error_of(kind, draws), kind < kSmoothErrors};
  plan.extra = static_cast<Extra>(draws.of<int>({0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7}));
  switch (plan.extra) {
    case Extra::target_matrix:
      weights.push_back({plan.weight = "L", WeightKind::matrix, out, out});
      break;
    case Extra::target_row:
      weights.push_back({plan.weight = "r", WeightKind::row, 1, out});
      break;
    case Extra::held_target:
      plan.weight = model.found(WeightKind::matrix, in, out);
      break;
    case Extra::held_weight:
    case Extra::penalty:
      for (const Weight& w : weights)
        if (w.kind == WeightKind::matrix && (plan.extra == Extra::penalty || w.in == in))
          plan.weight = w.name;
      break;
    default:
      return plan;
  }
  if (plan.weight.empty()) plan.extra = Extra::none;
  return plan;
}

Tensor loss_of(const LossPlan& plan, const std::function<Tensor(const Weights&, Tensor)>& f, const Weights& w,
               Tensor k, Tensor v) {
  Tensor p = f(w, k);
  switch (plan.extra) {
    case Extra::token_weight:
      return plan.error.f(p, v) * (0.5 + sigmoid(over_features(k)));
    case Extra::target_matrix:
      return plan.error.f(p, v + 0.3 * matmul(v, w[plan.weight]));
    case Extra::target_row:
      return plan.error.f(p * exp(0.3 * w[plan.weight]), v * exp(0.3 * w[plan.weight]));
    case Extra::held_target:
      return plan.error.f(p, v + 0.3 * tanh(matmul(k, w.held(plan.weight))));
    case Extra::held_weight:
      return plan.error.f(p, v) * sigmoid(over_features(matmul(k, w.held(plan.weight))));
    case Extra::stopped:
      return plan.error.f(p, v - 0.5 * stop_gradient(p));
    case Extra::penalty:
      return plan.error.f(p, v) + 0.01 * sum(square(w[plan.weight]), {-2, -1}, kKeep);
    case Extra::none:
      break;
  }
  return plan.error.f(p, v);
}

}  // namespace

RandomLearner draw_learner(Draws& draws, std::int64_t in, std::int64_t out) {
  RandomLearner learner;
  const RandomModel model = draw_model(draws, in, out);
  learner.weights = model.weights;
  const LossPlan plan = draw_loss(draws, model, learner.weights, in, out);
  learner.mixes = model.mixes;
  learner.counts = model.counts;
  learner.smooth = model.smooth && plan.smooth && plan.extra != Extra::stopped;
  const std::vector<Weight> of_loss(
      learner.weights.begin() + static_cast<std::ptrdiff_t>(model.weights.size()), learner.weights.end());
  learner.make = [=](const Params& params, std::int64_t heads) {
    ttt::Model made = model.make(params, heads);
    std::vector<ttt::FastWeight> start;
    for (std::size_t i = 0; i < made.start.size(); ++i) start.push_back(made.start.at(i));
    for (const Weight& w : of_loss)
      start.push_back({w.name, w.kind, params(w.name, {heads, w.in, w.out}, Init::normal(0.5))});
    made.start = Weights(std::move(start));
    return RandomLearner::Made{
        made, [plan, f = made.f](const Weights& w, Tensor k, Tensor v) { return loss_of(plan, f, w, k, v); }};
  };
  learner.text = fmt::format("{}; loss {}", model.text, plan.text());
  return learner;
}

}  // namespace nestgrad::fuzz
