// Laws: what an optimiser's steps add up to (StepLaw: one step; BlockLaw: a block), found on the trace of its step
// (never typed in).
//
// If a step is linear in the state S (the weight S_0 and its slots) and in
// the gradient, with coefficients P, r that depend on the token's gates
// alone, S_i <- sum_j P_ij S_j + r_i g, then after the tokens 0..t of a block
//
//   S_i,t = sum_j c_ij[t] S_j + sum over s <= t of z_i[t, s] g_s            (S_j: where the block begins)
//
//   z_i[t] = sum_j P_ij[t] z_j[t-1] + r_i[t] e_t,    c_i[t] = sum_k P_ik[t] c_k[t-1].
//
// Plain gradient descent: c = 1, z = -tril(1). Coefficients are one number a token (width 1) or one per input
// feature (diagonal gates, width in).
#pragma once

#include "ttt/forms/form.h"

namespace nestgrad::ttt {

// Coefficients of one step on rows of gates: [.., tokens, 1 or in], or anything that broadcasts to it;
// undefined: 0.
struct StepLaw {
  std::vector<std::vector<Tensor>> p;  // [i][j]
  std::vector<Tensor> r;               // [i]
  bool accumulates() const;            // one state, P = 1: the sum of the gradients
  std::int64_t width() const;          // of its coefficients: 1, or one per input feature

  // FormError naming the node, if the step of weight i is not linear, or its coefficients are no such
  // numbers. gates: rows [.., tokens, 1 or in].
  static StepLaw of(const InnerOptimizer& optimizer, const State& state, std::size_t weight,
                    const Gates& gates);
  // The same for InnerOptimizer::gradient_point: p[0][j] only.
  static StepLaw of_gradient_point(const InnerOptimizer& optimizer, const State& state, std::size_t weight,
                                   const Gates& gates);
};

// What is read at each token of a block, of one state.
struct Reads {
  std::vector<Tensor> c;  // [j]: rows [.., tokens, 1 or in]; undefined: 0
  bool keeps = false;     // c is 1 for the weight itself and 0 for the rest
  Tensor z;               // [.., tokens, tokens]; with feature_axis [.., tokens, tokens, in]
  bool feature_axis = false;
};

struct BlockLaw {
  Reads after, before;     // of the weight, with each token's step done, or not yet
  std::vector<Reads> end;  // of every state, one row: after the last token
};

// The laws of a block, as a form prepared them.
struct Laws {
  std::vector<BlockLaw> each;  // per weight
  std::vector<Reads> points;   // per weight: where gradients are taken (wy)
  std::vector<Tensor*> tensors();
};

// A law over chunks as one over their tokens: all of a chunk read the same weights, and all their gradients
// join the same step. rows: each chunk's row becomes one per token too.
void spread_over_tokens(Reads& reads, std::int64_t chunk, bool rows);

// tokens: of the block. lead: the leading axes of its rows. position: undefined, or [tokens]: how far the
// reading token goes along the way from the block's first weight (TTT's learnable position rate). starts: undefined, or
// [batch, 1, tokens, 1], 1 where the states are again what they were at the beginning of the block; then lead is {batch, heads}.
BlockLaw sum_up(const StepLaw& step, const Shape& lead, std::int64_t tokens, DType dtype, Tensor position,
                Tensor starts = {});
// Where the gradient of each token is taken in an online block (before its step): `point` applied to the
// states before each token.
Reads gradient_points(const StepLaw& step, const StepLaw& point, const Shape& lead, std::int64_t tokens,
                      DType dtype);

}  // namespace nestgrad::ttt
