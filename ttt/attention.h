// Softmax attention as a part of layers: causal, in a sliding window, over
// everything, or in a neighbourhood, along a line or in an image; and read
// token by token. Also its reading as a learner, the Nadaraya-Watson estimator.
//
//   out_t = sum_s a_ts v_s,   a_t = softmax over the tokens s that t reads of scale * <q_t, k_s>
//
// q has heads, k and v have groups, of which there may be fewer: groups divides heads, and head h reads the keys and
// values of group h / (heads / groups), as if each were repeated for the heads / groups heads that share it
// (grouped-query attention, Ainslie et al. 2023; with one group multi-query attention, Shazeer 2019). They are
// not repeated in memory.
//
// Weights of tokens that are not read are zero, whatever the scores (ttt/masked_softmax.h). Scores may be large, as long as they
// are finite themselves: products that leave the range of the type, such as those of f32 q and k of 1e20, make infinities and NaN.
// Causal attention never has all scores at once, nor does its derivative (ttt/causal_attention.h). With a window around a
// token the mask is a constant of [time, time]. Errors: ShapeError, DTypeError and ConfigError, with op and operands.
#pragma once

#include "ttt/stream.h"

namespace nestgrad::ttt {

struct AttentionOptions {
  // How many tokens a token reads; 0: no bound.
  //   causal       itself and the window - 1 before it (sliding window, Beltagy et al. 2020)
  //   not causal   odd, at most time: the window around it; at the borders the window is moved inside, so that every token
  //                reads as many (neighbourhood attention, Hassani et al. 2023, in one dimension)
  std::int64_t window = 0;
  bool causal = true;
  double scale = 0;           // of the scores; 0: 1/sqrt(dim)
  std::int64_t capacity = 0;  // attention_step without a window: the most tokens that it will read
  // causal, packed documents: [batch, time], each token's place in its own; it reads no token of another. All scores are
  // then made at once, [batch, heads, time, time].
  Tensor places = {};
};

// q [batch, heads, time, dim], k [batch, groups, time, dim], v [batch, groups, time, out] -> [batch, heads, time,
// out]. Neither causal nor with a window, q may have another number of tokens than k and v.
Tensor attention(Tensor q, Tensor k, Tensor v, const AttentionOptions& options = {},
                 Loc loc = Loc::current());

// The same for the height * width tokens of an image, row after row: each reads the window x window tokens
// around it, by the same rule at the borders. window is odd, at most height and width. scale as above.
Tensor neighbourhood_attention_2d(Tensor q, Tensor k, Tensor v, std::int64_t height, std::int64_t width,
                                  std::int64_t window, double scale = 0, Loc loc = Loc::current());

// The next token (time 1) of causal attention. What came before is carried by the stream: `name`.keys and
// `name`.values, of each group a ring of `window` rows, or without a window a cache of `capacity` rows, and
// `name`.seen.
// ValueError at run time if a cache is full.
Tensor attention_step(Tensor q, Tensor k, Tensor v, const AttentionOptions& options, Stream& stream,
                      const std::string& name, Loc loc = Loc::current());
// Causal attention over as much of a sequence as the stream gives: attention() of a whole one, attention_step() of a token, and of
// a slice that of all tokens, each rank for some of the heads. options.places: of the tokens here.
Tensor attention_along(Tensor q, Tensor k, Tensor v, const AttentionOptions& options, Stream& stream,
                       const std::string& name, Loc loc = Loc::current());

// The nonparametric learner whose weights are its training set (Sun et al. 2024, section 2.6, Theorem 2):
//   predict(q) = sum_s kappa(q, k_s) v_s / sum_s kappa(q, k_s),   kappa(q, k) = exp(scale * <q, k>).
// Trained on a token before it answers for it, token after token, it is causal attention.
class NadarayaWatson {
 public:
  // The kernel's bandwidth lies in the views that make q and k; scale is a number in front of it.
  explicit NadarayaWatson(double scale = 1, Loc loc = Loc::current());
  // Adds examples: k [batch, groups, tokens, dim], v [batch, groups, tokens, out].
  void train(Tensor k, Tensor v, Loc loc = Loc::current());
  // q [batch, heads, queries, dim] -> [batch, heads, queries, out]. Scores scale * <q, k> of any size are safe, as
  // long as they are finite in the type of q; those that are not make infinities and NaN.
  Tensor predict(Tensor q, Loc loc = Loc::current()) const;
  std::int64_t examples() const { return k_.defined() ? k_.dim(2) : 0; }

 private:
  double scale_;
  Tensor k_, v_;
};

}  // namespace nestgrad::ttt
