// Optimisers, each with the same by hand.
#pragma once

#include "tests/ttt/by_hand.h"

namespace nestgrad::testing {

inline Method sgd() {
  return {"SGD", {}, [](const Params&) { return std::pair(InnerOptimizer(), Hand()); }};
}
inline Tensor nothing(Tensor w) { return w * 0.0; }

// Steps that are linear in state and gradient, with one number a token.
inline std::vector<Method> linear_methods(const Sizes& s) {
  const auto with_momentum = [](Tensor w) { return Tensors{w, nothing(w)}; };
  using ttt::gate;
  return {
      sgd(),
      {"scale",
       {{"size"}},
       [](const Params&) {
         Hand hand;
         hand.step = [](Tensors& w, Tensor g, const Now& now) { w[0] = w[0] - 0.3 * now("size") * g; };
         return std::pair(InnerOptimizer().scale(0.3).scale(gate("size")), hand);
       }},
      {"momentum",
       {},
       [=](const Params&) {
         Hand hand{.start = with_momentum};
         hand.step = [](Tensors& w, Tensor g, const Now&) {
           w[1] = 0.7 * w[1] + g;
           w[0] = w[0] - w[1];
         };
         return std::pair(InnerOptimizer().momentum(0.7), hand);
       }},
      {"momentum of each token",
       {{"beta"}},
       [=](const Params&) {
         Hand hand{.start = with_momentum};
         hand.step = [](Tensors& w, Tensor g, const Now& now) {
           w[1] = now("beta") * w[1] + g;
           w[0] = w[0] - w[1];
         };
         return std::pair(InnerOptimizer().momentum(gate("beta")), hand);
       }},
      {"Nesterov",
       {{"beta"}},
       [=](const Params&) {
         Hand hand{.start = with_momentum};
         hand.step = [](Tensors& w, Tensor g, const Now& now) {
           w[1] = now("beta") * w[1] + g;
           w[0] = w[0] - g - now("beta") * w[1];
         };
         return std::pair(InnerOptimizer().momentum(gate("beta"), true), hand);
       }},
      {"decay",
       {},
       [](const Params&) {
         Hand hand;
         hand.step = [](Tensors& w, Tensor g, const Now&) { w[0] = 0.9 * w[0] - g; };
         return std::pair(InnerOptimizer().keep(0.9), hand);
       }},
      {"decay of each token",
       {{"keep"}},
       [](const Params&) {
         Hand hand;
         hand.step = [](Tensors& w, Tensor g, const Now& now) { w[0] = now("keep") * w[0] - g; };
         return std::pair(InnerOptimizer().keep(gate("keep")), hand);
       }},
      {"Titans",
       {{"beta"}, {"keep"}},
       [=](const Params&) {
         Hand hand{.start = with_momentum};
         hand.step = [](Tensors& w, Tensor g, const Now& now) {
           w[1] = now("beta") * w[1] + g;
           w[0] = now("keep") * w[0] - w[1];
         };
         return std::pair(InnerOptimizer().momentum(gate("beta")).keep(gate("keep")), hand);
       }},
      {"two momenta, a scale between them, decay",
       {{"beta"}, {"size"}, {"keep"}},
       [](const Params&) {
         Hand hand{.start = [](Tensor w) { return Tensors{w, nothing(w), nothing(w)}; }};
         hand.step = [](Tensors& w, Tensor g, const Now& now) {
           w[1] = 0.5 * w[1] + g;
           const Tensor scaled = now("size") * w[1];
           w[2] = now("beta") * w[2] + scaled;
           w[0] = now("keep") * w[0] - (scaled + now("beta") * w[2]);
         };
         return std::pair(InnerOptimizer()
                              .momentum(0.5)
                              .scale(gate("size"))
                              .momentum(gate("beta"), true)
                              .keep(gate("keep")),
                          hand);
       }},
      {"a piece of one's own",
       {{"beta"}},
       [](const Params&) {
         Hand hand{.start = [](Tensor w) { return Tensors{w, nothing(w), nothing(w)}; }};
         hand.step = [](Tensors& w, Tensor g, const Now& now) {
           const Tensor old = w[1];
           w[1] = 0.5 * old - w[2] / (1.0 + now("beta"));
           w[2] = 0.25 * w[2] + exp(-now("beta")) * (g + old);
           w[0] = w[0] - (w[1] + w[2] + 0.1 * g);
         };
         const auto fn = [](Tensor g, std::span<Tensor> slots, const ttt::Gates& gates) {
           const Tensor beta = gates.at("beta"), old = slots[0];
           slots[0] = 0.5 * old - slots[1] / (1.0 + beta);
           slots[1] = 0.25 * slots[1] + exp(-beta) * (g + old);
           return slots[0] + slots[1] + 0.1 * g;
         };
         return std::pair(InnerOptimizer().piece("leapfrog", fn, {"position", "speed"}), hand);
       }},
      {"learned numbers of each head",
       {},
       [=](const Params& p) {
         const Tensor size = p("size", {s.heads, 1, 1}), beta = sigmoid(p("beta", {})),
                      keep = sigmoid(p("keep", {s.heads, 1, 1}));
         Hand hand{.start = with_momentum};
         hand.step = [=](Tensors& w, Tensor g, const Now&) {
           w[1] = beta * w[1] + size * g;
           w[0] = keep * w[0] - w[1];
         };
         return std::pair(InnerOptimizer().scale(size).momentum(beta).keep(keep), hand);
       }},
  };
}

// One number per input feature.
inline std::vector<Method> feature_methods(const Sizes& s) {
  using ttt::gate;
  return {
      {"a forget gate per feature (GLA)",
       {{"keep", true}},
       [](const Params&) {
         Hand hand;
         hand.step = [](Tensors& w, Tensor g, const Now& now) { w[0] = now("keep") * w[0] - g; };
         return std::pair(InnerOptimizer().keep(gate("keep")), hand);
       }},
      {"everything per feature",
       {{"size", true}, {"beta", true}, {"keep", true}},
       [](const Params&) {
         Hand hand{.start = [](Tensor w) { return Tensors{w, nothing(w)}; }};
         hand.step = [](Tensors& w, Tensor g, const Now& now) {
           w[1] = now("beta") * w[1] + now("size") * g;
           w[0] = now("keep") * w[0] - w[1];
         };
         return std::pair(InnerOptimizer().scale(gate("size")).momentum(gate("beta")).keep(gate("keep")),
                          hand);
       }},
      {"learned per feature, momentum per token",
       {{"beta"}},
       [=](const Params& p) {
         const Tensor keep = sigmoid(p("keep", {s.heads, s.dim, 1}));
         Hand hand{.start = [](Tensor w) { return Tensors{w, nothing(w)}; }};
         hand.step = [=](Tensors& w, Tensor g, const Now& now) {
           w[1] = now("beta") * w[1] + g;
           w[0] = keep * w[0] - w[1];
         };
         return std::pair(InnerOptimizer().momentum(gate("beta")).keep(keep), hand);
       }},
      {"a scale per feature, summed up",
       {{"size", true}},
       [](const Params&) {
         Hand hand;
         hand.step = [](Tensors& w, Tensor g, const Now& now) { w[0] = w[0] - now("size") * g; };
         return std::pair(InnerOptimizer().scale(gate("size")), hand);
       }},
  };
}

// The forget gate acts before the gradient is taken.
inline std::vector<Method> moving_methods() {
  using ttt::gate;
  const auto make = [](const Params&) {
    Hand hand;
    hand.point = [](Tensor w, const Now& now) { return now("keep") * w; };
    hand.step = [](Tensors& w, Tensor g, const Now& now) { w[0] = now("keep") * w[0] - g; };
    return std::pair(InnerOptimizer().keep(gate("keep"), true), hand);
  };
  return {
      {"keep before the gradient", {{"keep"}}, make},
      {"keep before the gradient, per feature", {{"keep", true}}, make},
      {"keep before the gradient, momentum",
       {{"keep"}, {"beta"}},
       [](const Params&) {
         Hand hand{.start = [](Tensor w) { return Tensors{w, nothing(w)}; }};
         hand.point = [](Tensor w, const Now& now) { return now("keep") * w; };
         hand.step = [](Tensors& w, Tensor g, const Now& now) {
           w[1] = now("beta") * w[1] + g;
           w[0] = now("keep") * w[0] - w[1];
         };
         return std::pair(InnerOptimizer().momentum(gate("beta")).keep(gate("keep"), true), hand);
       }},
  };
}

// The same by a constant, or by an outer parameter: for all tokens of a chunk alike.
inline std::vector<Method> evenly_moving_methods() {
  const auto hand_of = [](const std::function<Tensor(Tensor w)>& kept) {
    Hand hand;
    hand.point = [=](Tensor w, const Now&) { return kept(w); };
    hand.step = [=](Tensors& w, Tensor g, const Now&) { w[0] = kept(w[0]) - g; };
    return hand;
  };
  return {{"keep 0.8 before the gradient",
           {},
           [=](const Params&) {
             return std::pair(InnerOptimizer().keep(0.8, true), hand_of([](Tensor w) { return 0.8 * w; }));
           }},
          {"keep a parameter before the gradient", {}, [=](const Params& p) {
             const Tensor keep = sigmoid(p("keep", {2, 1, 1}));
             return std::pair(InnerOptimizer().keep(keep, true), hand_of([=](Tensor w) { return keep * w; }));
           }}};
}

// Unit vectors times what is inside the brackets of Jordan et al.'s Newton-Schulz step, written per matrix.
inline Tensor newton_schulz(Tensor x, const ttt::QuinticSteps& steps, double eps) {
  x = x / (sqrt(sum(square(x), {-2, -1}, kKeep)) + eps);
  for (const auto& [a, b, c] : steps) {
    const Tensor gram = matmul(x, transpose(x));
    x = a * x + matmul(b * gram + c * matmul(gram, gram), x);
  }
  return x;
}
inline Tensor column_norm(Tensor w) { return sqrt(sum(square(w), {-2}, kKeep)); }

// Steps that are not linear. Muon, the norms and the master copy concern matrices only.
inline std::vector<Method> nonlinear_methods(const Sizes& s) {
  using ttt::gate;
  using ttt::Per;
  const auto row_like = [](Tensor w) { return w.dim(-2) == 1; };
  return {
      {"weight norm",
       {},
       [=](const Params&) {
         Hand hand{.start = [=](Tensor w) { return row_like(w) ? Tensors{w} : Tensors{w, column_norm(w)}; }};
         hand.step = [](Tensors& w, Tensor g, const Now&) {
           const Tensor next = w[0] - g;
           w[0] = w.size() == 1 ? next : next / (column_norm(next) + 1e-5) * w[1];
         };
         return std::pair(InnerOptimizer().weight_norm(), hand);
       }},
      {"weight norm, detached, and decay",
       {{"keep"}},
       [=](const Params&) {
         Hand hand{.start = [=](Tensor w) {
           return row_like(w) ? Tensors{w} : Tensors{w, column_norm(stop_gradient(w))};
         }};
         hand.step = [](Tensors& w, Tensor g, const Now& now) {
           const Tensor next = now("keep") * w[0] - g;
           w[0] = w.size() == 1 ? next : next / (column_norm(next) + 1e-3) * w[1];
         };
         return std::pair(InnerOptimizer().keep(gate("keep")).weight_norm(1e-3, true), hand);
       }},
      {"norm of a master copy, momentum",
       {{"beta"}},
       [=](const Params&) {
         Hand hand{.start = [=](Tensor w) {
           return row_like(w) ? Tensors{w, nothing(w)} : Tensors{w, nothing(w), column_norm(w), w};
         }};
         hand.step = [](Tensors& w, Tensor g, const Now& now) {
           w[1] = now("beta") * w[1] + g;
           if (w.size() == 2) {
             w[0] = w[0] - w[1];
             return;
           }
           w[3] = w[3] - w[1];
           w[0] = w[3] / (column_norm(w[3]) + 1e-5) * w[2];
         };
         return std::pair(InnerOptimizer().momentum(gate("beta")).prenorm(), hand);
       }},
      {"Muon",
       {{"beta"}},
       [=](const Params&) {
         Hand hand{.start = [](Tensor w) { return Tensors{w, nothing(w)}; }};
         hand.step = [=](Tensors& w, Tensor g, const Now& now) {
           w[1] = now("beta") * w[1] + g;
           w[0] = w[0] -
                  (row_like(w[0])
                       ? w[1]
                       : newton_schulz(w[1], {{3.4445, -4.7750, 2.0315}, {3.4445, -4.7750, 2.0315}}, 1e-3));
         };
         return std::pair(InnerOptimizer().momentum(gate("beta")).muon(ttt::muon_published(2), 1e-3), hand);
       }},
      {"Adam",
       {},
       [=](const Params&) {
         Hand hand{.start = [](Tensor w) { return Tensors{w, nothing(w), nothing(w)}; }};
         hand.step = [](Tensors& w, Tensor g, const Now&) {
           w[1] = 0.8 * w[1] + 0.2 * g;
           w[2] = 0.9 * w[2] + 0.1 * g * g;
           w[0] = w[0] - w[1] / sqrt(w[2] + 1e-2);
         };
         return std::pair(InnerOptimizer().adam(0.8, 0.9, 1e-2), hand);
       }},
      {"clip per matrix",
       {},
       [](const Params&) {
         Hand hand;
         hand.step = [](Tensors& w, Tensor g, const Now&) {
           const Tensor length = sqrt(sum(square(g), {-2, -1}, kKeep));
           w[0] = w[0] - g * min(1.0, 0.5 / length);
         };
         return std::pair(InnerOptimizer().clip(Per::matrix, 0.5), hand);
       }},
      {"normalise per column",
       {},
       [](const Params&) {
         Hand hand;
         hand.step = [](Tensors& w, Tensor g, const Now&) { w[0] = w[0] - g / (column_norm(g) + 0.1); };
         return std::pair(InnerOptimizer().normalize(Per::column, 0.1), hand);
       }},
      {"clip over all weights, momentum",
       {{"beta"}},
       [](const Params&) {
         Hand hand{.start = [](Tensor w) { return Tensors{w, nothing(w)}; }};
         hand.joint = [](Tensors g) {
           Tensor squares;
           for (const Tensor& t : g)
             squares = squares.defined() ? squares + sum(square(t), {-2, -1}, kKeep)
                                         : sum(square(t), {-2, -1}, kKeep);
           for (Tensor& t : g) t = t * min(1.0, 1.5 / sqrt(squares));
           return g;
         };
         hand.step = [](Tensors& w, Tensor g, const Now& now) {
           w[1] = now("beta") * w[1] + g;
           w[0] = w[0] - w[1];
         };
         return std::pair(InnerOptimizer().clip(Per::all, 1.5).momentum(gate("beta")), hand);
       }},
      {"normalise over all weights",
       {},
       [](const Params&) {
         Hand hand;
         hand.joint = [](Tensors g) {
           Tensor squares;
           for (const Tensor& t : g)
             squares = squares.defined() ? squares + sum(square(t), {-2, -1}, kKeep)
                                         : sum(square(t), {-2, -1}, kKeep);
           for (Tensor& t : g) t = t / (sqrt(squares) + 0.1);
           return g;
         };
         return std::pair(InnerOptimizer().normalize(Per::all, 0.1), hand);
       }},
      {"a rate of each element",
       {},
       [=](const Params& p) {
         const Tensor size = exp(p("size", {s.heads, s.dim, s.value_dim ? s.value_dim : s.dim}));
         Hand hand;
         hand.step = [=](Tensors& w, Tensor g, const Now&) { w[0] = w[0] - (row_like(w[0]) ? g : size * g); };
         return std::pair(InnerOptimizer().piece("own rates",
                                                 [=](Tensor g, std::span<Tensor>, const ttt::Gates&) {
                                                   return row_like(g) ? g : size * g;
                                                 }),
                          hand);
       }},
  };
}

}  // namespace nestgrad::testing
