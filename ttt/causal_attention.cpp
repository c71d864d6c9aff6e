#include "ttt/causal_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "ops/attrs.h"
#include "ops/ops.h"
#include "ops/table.h"
#include "ttt/causal_attention_in_ops.h"
#include "ttt/causal_attention_kernels.h"

namespace nestgrad {

namespace {

constexpr std::int64_t kMostWindow = std::int64_t{1} << 47;  // more tokens than any memory holds

std::int64_t window_of(const Attrs& a) { return a.as<CausalAttentionAttrs>().window; }

Spec infer_attention(const OpCall& c) {
  for (const Spec& x : c.in) {
    if (!is_float(x.dtype) || x.dtype != c.in[0].dtype)
      c.dtype_error("operands must be of one floating type; cast() them");
    if (x.rank() != 4 || x.size() == 0)
      c.shape_error(
          "needs q [batch, heads, time, dim], k [batch, groups, time, dim] and v [batch, groups, time, out], "
          "none empty");
  }
  const Shape &q = c.in[0].shape, &k = c.in[1].shape, &v = c.in[2].shape;
  if (k[0] != q[0] || k[2] != q[2] || !std::equal(k.begin(), k.begin() + 3, v.begin()))
    c.shape_error("batch, time, or heads of k and v differ; need as many of each");
  if (q[1] % k[1] != 0)
    c.shape_error("every head of k and v is read by as many of q; need q.heads to be a multiple of k.heads");
  if (k[3] != q[3]) c.shape_error("need q.dim == k.dim");
  if (window_of(c.attrs) < 0 || window_of(c.attrs) > kMostWindow)
    c.shape_error(fmt::format("the window must be positive, up to {}, or 0 for no bound", kMostWindow));
  Spec out = c.in[0];
  out.shape[3] = v[3] + 2;
  return out;
}

Spec infer_derivative(const OpCall& c) {
  const Spec y = infer_attention({c.op, c.in.first(3), c.attrs, {}, c.nodes, c.ids});
  if (c.in[3] != y || c.in[4] != y)
    c.shape_error(fmt::format("needs an output and a cotangent of causal_attention, {} each", to_string(y)));
  const Shape &q = c.in[0].shape, &k = c.in[1].shape;
  Spec out = c.in[1];
  out.shape[3] = (q[1] / k[1] + 1) * q[3] + c.in[2].shape[3];
  return out;
}

// Sequences are independent, and so are heads. Where heads share keys, those of q and of k are not as many, and
// only those of q that all read the same go somewhere.
int attention_axes(const OpCall& c, int input, int axis) {
  const std::int64_t heads = c.in[0].shape[1], groups = c.in[1].shape[1];
  const bool apart = heads == groups || (groups == 1 && input == 0);
  return axis == 0 || (axis == 1 && apart) ? axis : -1;
}

// There the cotangents of heads that share keys lie side by side, in no axis of their own.
int derivative_axes(const OpCall& c, int, int axis) {
  return axis == 0 || (axis == 1 && c.in[0].shape[1] == c.in[1].shape[1]) ? axis : -1;
}

std::string window_text(const Attrs& a) {
  return window_of(a) == 0 ? "" : fmt::format("window {}", window_of(a));
}

Tensor attention_vjp(const VjpCall& c) {
  const Tensor d = emit(causal_attention_derivative_op, {c.in[0], c.in[1], c.in[2], c.out, c.ct}, c.attrs);
  const std::int64_t groups = c.in[1].dim(1), each = c.in[0].dim(1) / groups, time = c.in[0].dim(2),
                     dim = c.in[0].dim(3), of_q = each * dim;
  if (c.input == 1) return slice(d, 3, of_q, of_q + dim);
  if (c.input == 2) return slice(d, 3, of_q + dim, d.dim(3));
  const Tensor of_heads = slice(d, 3, 0, of_q);
  if (each == 1) return of_heads;
  return rows_of_heads(reshape(of_heads, {d.dim(0), groups, time * each, dim}), each);
}

}  // namespace

constinit const Op causal_attention_op = {
    .name = "causal_attention",
    .doc =
        "Rows of softmax(q k') v, where q reads its own key and those before it, and behind each the logarithm "
        "of the sum of the exponentials of the scores and what rounding took from that. Heads of k and v may "
        "be fewer, each read by as many heads of q.",
    .infer = infer_attention,
    .vjp = attention_vjp,
    .expand = causal_attention_in_ops,
    .axes = attention_axes,
    .cost = causal_attention_cost,
    .cpu = causal_attention_kernel,
    .describe = window_text,
    .read_attrs = attrs_from<CausalAttentionAttrs>,
    .samples = []() -> std::vector<OpSample> {
      return {{.inputs = {{{2, 3, 4, 5}}, {{2, 3, 4, 5}}, {{2, 3, 4, 1}}}, .attrs = CausalAttentionAttrs{0}},
              {.inputs = {{{1, 2, 5, 3}}, {{1, 2, 5, 3}}, {{1, 2, 5, 4}}}, .attrs = CausalAttentionAttrs{2}},
              {.inputs = {{{2, 4, 3, 2}}, {{2, 2, 3, 2}}, {{2, 2, 3, 3}}}, .attrs = CausalAttentionAttrs{0}},
              {.inputs = {{{1, 3, 4, 2}}, {{1, 1, 4, 2}}, {{1, 1, 4, 1}}}, .attrs = CausalAttentionAttrs{2}},
              {.inputs = {{{1, 2, 3, 4}}, {{1, 2, 3, 5}}, {{1, 2, 3, 4}}},
               .attrs = CausalAttentionAttrs{0},
               .error = "need q.dim == k.dim"},
              {.inputs = {{{1, 2, 3, 4}}, {{1, 2, 3, 4}}, {{1, 2, 5, 4}}},
               .attrs = CausalAttentionAttrs{0},
               .error = "batch, time, or heads of k and v differ"},
              {.inputs = {{{1, 3, 3, 4}}, {{1, 2, 3, 4}}, {{1, 2, 3, 4}}},
               .attrs = CausalAttentionAttrs{0},
               .error = "need q.heads to be a multiple of k.heads: a is"},
              {.inputs = {{{1, 2, 3, 4}}, {{1, 1, 3, 4}}, {{1, 2, 3, 4}}},
               .attrs = CausalAttentionAttrs{0},
               .error = "heads of k and v differ"},
              {.inputs = {{{3, 4}}, {{3, 4}}, {{3, 4}}},
               .attrs = CausalAttentionAttrs{0},
               .error = "needs q [batch, heads, time, dim], k [batch, groups, time, dim]"},
              {.inputs = {{{1, 2, 3, 4}}, {{1, 2, 3, 4}}, {{1, 2, 3, 4}, 0, 1, DType::i32}},
               .attrs = CausalAttentionAttrs{0},
               .error = "of one floating type; cast() them"},
              {.inputs = {{{1, 2, 3, 4}}, {{1, 2, 3, 4}}, {{1, 2, 3, 4}}},
               .attrs = CausalAttentionAttrs{-1},
               .error = "the window must be positive"},
              {.inputs = {{{1, 2, 3, 4}}, {{1, 2, 3, 4}}, {{1, 2, 3, 4}}},
               .attrs = CausalAttentionAttrs{std::numeric_limits<std::int64_t>::max()},
               .error = "the window must be positive, up to"}};
    }};

constinit const Op causal_attention_derivative_op = {
    .name = "causal_attention_derivative",
    .doc =
        "Cotangents of q, head by head of those that read the same keys, of k and of v, side by side, from the "
        "output of causal_attention and its cotangent.",
    .infer = infer_derivative,
    .vjp = causal_attention_derivative_vjp,
    .expand = causal_attention_derivative_in_ops,
    .axes = derivative_axes,
    .cost = causal_attention_derivative_cost,
    .cpu = causal_attention_derivative_kernel,
    .describe = window_text,
    .read_attrs = attrs_from<CausalAttentionAttrs>,
    .samples = []() -> std::vector<OpSample> {
      return {{.inputs = {{{2, 1, 3, 2}}, {{2, 1, 3, 2}}, {{2, 1, 3, 4}}, {{2, 1, 3, 6}}, {{2, 1, 3, 6}}},
               .attrs = CausalAttentionAttrs{0}},
              {.inputs = {{{1, 2, 4, 3}}, {{1, 2, 4, 3}}, {{1, 2, 4, 1}}, {{1, 2, 4, 3}}, {{1, 2, 4, 3}}},
               .attrs = CausalAttentionAttrs{2}},
              {.inputs = {{{2, 4, 3, 2}}, {{2, 2, 3, 2}}, {{2, 2, 3, 1}}, {{2, 4, 3, 3}}, {{2, 4, 3, 3}}},
               .attrs = CausalAttentionAttrs{0}},
              {.inputs = {{{1, 3, 4, 1}}, {{1, 1, 4, 1}}, {{1, 1, 4, 2}}, {{1, 3, 4, 4}}, {{1, 3, 4, 4}}},
               .attrs = CausalAttentionAttrs{2}},
              {.inputs = {{{1, 2, 3, 4}}, {{1, 2, 3, 4}}, {{1, 2, 3, 4}}, {{1, 2, 3, 6}}, {{1, 2, 3, 4}}},
               .attrs = CausalAttentionAttrs{0},
               .error = "needs an output and a cotangent of causal_attention, f64[1,2,3,6] each"}};
    }};

namespace ttt {

Tensor causal_attention(Tensor q, Tensor k, Tensor v, std::int64_t window, Loc loc) {
  return emit(causal_attention_op, {q, k, v}, CausalAttentionAttrs{window}, loc);
}

}  // namespace ttt

}  // namespace nestgrad
