// Learners of every shape that a derived form must cope with. The mini-batch has as many tokens as a token
// has features, on purpose: nothing can be told by size.
#pragma once

#include "tests/ttt/ttt_testing.h"
#include "ttt/learners/linear.h"
#include "ttt/learners/mlp.h"

namespace nestgrad::testing {

using ttt::matrix;
using ttt::row;

// A learner from two formulas: its fast weights, given its parameters; and its prediction.
inline NamedLearner formula(std::string name, std::function<Weights(const Params& params)> init,
                            FormulaLearner::Predict predict, FormulaLearner::Loss loss = {}) {
  return {std::move(name),
          [=](const Params& p) { return std::make_unique<FormulaLearner>(init(p), predict, loss); }};
}

// -<f(k), v>
inline FormulaLearner::Loss against(const FormulaLearner::Predict& f) {
  return [f](const Weights& w, Tensor k, Tensor v) { return -sum(f(w, k) * v, {-1}, kKeep); };
}

using Activation = Tensor (*)(Operand);

// A perceptron with biases: the weights W0, b0, W1, b1, ..; widths [in, hidden.., out].
inline NamedLearner perceptron(std::string name, std::int64_t heads, const std::vector<std::int64_t>& widths,
                               Activation activation) {
  return formula(
      std::move(name),
      [=](const Params& p) {
        std::vector<ttt::FastWeight> w;
        for (std::size_t i = 1; i < widths.size(); ++i) {
          w.push_back(
              matrix(fmt::format("W{}", i), p(fmt::format("W{}", i), {heads, widths[i - 1], widths[i]})));
          w.push_back(row(fmt::format("b{}", i), p(fmt::format("b{}", i), {heads, 1, widths[i]})));
        }
        return Weights(std::move(w));
      },
      [=](const Weights& w, Tensor x) {
        for (std::size_t i = 0; i < w.size(); i += 2) {
          x = matmul(x, w.at(i).value) + w.at(i + 1).value;
          if (i + 2 < w.size()) x = activation(x);
        }
        return x;
      });
}

template <class Learner>
NamedLearner published(std::string name, const Sizes& s) {
  return {std::move(name), [s](const Params& p) { return std::make_unique<Learner>(p, s.heads, s.dim); }};
}

inline NamedLearner ttt_linear(const Sizes& s = {}) { return published<ttt::Linear>("TTT-Linear", s); }
inline NamedLearner ttt_mlp(const Sizes& s = {}) { return published<ttt::Mlp>("TTT-MLP", s); }

inline std::vector<NamedLearner> named_learners(const Sizes& s = {}) {
  const std::int64_t heads = s.heads, dim = s.dim;
  const auto square_weight = [=](const Params& p) { return Weights{matrix("W", p("W", {heads, dim, dim}))}; };
  const auto swiglu = [](const Weights& w, Tensor x) {
    return matmul(silu(matmul(x, w["W0"])) * matmul(x, w["W2"]), w["W1"]);
  };
  const std::int64_t hidden = dim + 2;
  return {
      perceptron("linear with bias", heads, {dim, dim}, tanh),
      ttt_linear(s),
      ttt_mlp(s),
      perceptron("two layers, gelu", heads, {dim, hidden, dim}, gelu_tanh),
      perceptron("two layers, silu", heads, {dim, hidden, dim}, silu),
      perceptron("three layers, tanh", heads, {dim, dim, hidden, dim}, tanh),
      formula(
          "SwiGLU, -<f(k), v>",
          [=](const Params& p) {
            return Weights{matrix("W0", p("W0", {heads, dim, hidden})),
                           matrix("W1", p("W1", {heads, hidden, dim})),
                           matrix("W2", p("W2", {heads, dim, hidden}))};
          },
          swiglu, against(swiglu)),
      formula("tanh(xW) * (xW): one weight, two uses", square_weight,
              [](const Weights& w, Tensor x) { return tanh(matmul(x, w["W"])) * matmul(x, w["W"]); }),
      formula("tanh(tanh(xW)W): tied", square_weight,
              [](const Weights& w, Tensor x) { return tanh(matmul(tanh(matmul(x, w["W"])), w["W"])); }),
      formula(
          "tanh(xW)W': transposed by matmul", square_weight,
          [](const Weights& w, Tensor x) { return matmul(tanh(matmul(x, w["W"])), w["W"], {.b = true}); }),
      formula("tanh(xW)W': transposed by transpose()", square_weight,
              [](const Weights& w, Tensor x) { return matmul(tanh(matmul(x, w["W"])), transpose(w["W"])); }),
      formula(
          "LN with fast gain and shift",
          [=](const Params& p) {
            return Weights{matrix("W", p("W", {heads, dim, dim})), row("gain", p("gain", {heads, 1, dim})),
                           row("shift", p("shift", {heads, 1, dim}))};
          },
          [](const Weights& w, Tensor x) { return layer_norm(matmul(x, w["W"]), w["gain"], w["shift"]); }),
      formula(
          "exp(s) gate",
          [=](const Params& p) {
            return Weights{matrix("W", p("W", {heads, dim, dim})), row("s", p("s", {heads, 1, dim}))};
          },
          [](const Weights& w, Tensor x) { return exp(w["s"]) * tanh(matmul(x, w["W"])); }),
  };
}

// SwiGLU with -<f(k), v>.
inline NamedLearner swiglu(const Sizes& s) {
  for (const NamedLearner& named : named_learners(s))
    if (contains(named.name, "SwiGLU")) return named;
  return {};
}

}  // namespace nestgrad::testing
