#include "ttt/causal_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "autograd/grad.h"
#include "autograd/scan.h"
#include "engine/core/index.h"
#include "engine/core/threads.h"
#include "ops/attrs.h"
#include "ops/kernels.h"
#include "ops/ops.h"
#include "ops/table.h"

namespace nestgrad {

namespace {

std::int64_t window_of(const Attrs& a) { return a.as<CausalAttentionAttrs>().window; }

// ---- in ops ----

constexpr double kUnread = -1e30;  // the score of what is not read; finite, for it may be a row's largest

// Blocks of kBlock queries, whose scores stay in the cache and are computed again for the derivative. They are
// loops over the keys that the last of kGroup blocks reads.
constexpr std::int64_t kBlock = 64, kGroup = 4;

// What some queries make of the keys and values before them. rows: what there is of each query, q first;
// unread(scores) are the scores of which those that are not read are kUnread.
using ReadFn = std::function<Tensor(const Tensors& rows, Tensor keys, Tensor values,
                                    const std::function<Tensor(Tensor)>& unread)>;

struct Reading {
  Tensors rows;  // [batch, heads, time, ..]
  Tensor k, v;
  std::int64_t window;
  ReadFn read;

  // Of queries at the times `now`, [queries, 1], and keys at `times`, [1, keys].
  Tensor at(const Tensors& queries, Tensor keys, Tensor values, Tensor now, Tensor times) const {
    return read(queries, keys, values, [&](Tensor scores) {
      Tensor mask = less_equal(times, now);
      if (window != 0) mask = mask * less(now - static_cast<double>(window), times);
      return select(mask, scores, kUnread);
    });
  }
  Tensor group(std::int64_t begin, std::int64_t end) const;
  Tensor all() const;
};

// Of the queries begin <= t < end, all in loops of kBlock but for what is left over.
Tensor Reading::group(std::int64_t begin, std::int64_t end) const {
  const DType dtype = k.dtype();
  const std::int64_t batch = k.dim(0), heads = k.dim(1), blocks = (end - begin) / kBlock;
  const std::int64_t first = window == 0 ? 0 : std::max<std::int64_t>(0, begin - window + 1);
  const Tensor keys = slice(k, 2, first, end), values = slice(v, 2, first, end);
  const Tensor times = iota(dtype, {1, end - first}, 1) + static_cast<double>(first);
  Tensors xs;
  for (const Tensor& x : rows) xs.push_back(slice(x, 2, begin, end));
  if (blocks == 0 || end - begin != blocks * kBlock)
    return at(xs, keys, values, iota(dtype, {end - begin, 1}, 0) + static_cast<double>(begin), times);
  for (Tensor& x : xs) x = permute(reshape(x, {batch, heads, blocks, kBlock, x.dim(3)}), {2, 0, 1, 3, 4});
  xs.push_back(iota(dtype, {blocks, 1, 1}, 0) * static_cast<double>(kBlock) + static_cast<double>(begin));
  const Tensor in_block = iota(dtype, {kBlock, 1}, 0);
  const auto step = [&](const Tensors&, const Tensors& x) -> StepOutput {
    return {{}, {at({x.begin(), x.end() - 1}, keys, values, in_block + x.back(), times)}};
  };
  const Tensor out = scan(step, {}, xs, {.checkpoint_every = 1}).ys[0];
  return reshape(permute(out, {1, 2, 0, 3, 4}), {batch, heads, end - begin, out.dim(4)});
}

Tensor Reading::all() const {
  const std::int64_t time = k.dim(2), whole = time / kBlock * kBlock;
  Tensors groups;
  for (std::int64_t begin = 0; begin < whole; begin += kGroup * kBlock)
    groups.push_back(group(begin, std::min(whole, begin + kGroup * kBlock)));
  if (whole < time) groups.push_back(group(whole, time));
  return groups.size() == 1 ? groups[0] : concat(groups, 2);
}

Tensor attention_in_ops(std::span<const Tensor> in, const Attrs& attrs) {
  const auto read = [](const Tensors& rows, Tensor keys, Tensor values, const auto& unread) {
    const Tensor scores = unread(matmul(rows[0], keys, {.b = true}));
    return concat({matmul(softmax(scores, -1), values), logsumexp(scores, -1, kKeep)}, -1);
  };
  return Reading{{in[0]}, in[1], in[2], window_of(attrs), read}.all();
}

// fn's results in a graph of its own, where the inputs do not depend on each other, put into this one.
Tensors apart(std::span<const Tensor> in, const std::function<Tensors(const Tensors&)>& fn) {
  Graph& parent = context().emit.graph ? *context().emit.graph : in[0].graph();
  Graph graph(GraphOptions{.parent = &parent, .hoist = false});
  Closing closing;
  {
    const GraphScope scope(graph);
    Tensors inputs;
    for (const Tensor& t : in) inputs.push_back(graph.input(t.spec()));
    for (const Tensor& t : inputs) closing.carries.push_back(t.id());
    for (const Tensor& t : fn(inputs)) closing.outs.push_back(graph.lift(t));
  }
  const auto body = close_body(graph, closing).body;
  const Tensors nodes = inline_body(*body, in);
  Tensors out;
  for (NodeId id : body->outs) out.push_back(nodes[uz(id)]);
  return out;
}

// With weights w = e^(scores - lse), where lse is held fixed: the derivative of w v and of the sums of w,
// whose cotangents are those of the output and -delta. For w sums to one.
Tensor derivative_in_ops(std::span<const Tensor> in, const Attrs& attrs) {
  const Tensor y = in[3], ct = in[4];
  const std::int64_t out = in[2].dim(3);
  const auto values = [&](Tensor x) { return slice(x, 3, 0, out); };
  const auto lse = [&](Tensor x) { return slice(x, 3, out, out + 1); };
  const Tensor delta = sum(values(y) * values(ct), {-1}, kKeep) - lse(ct);
  const Tensor operands[] = {in[0], in[1], in[2], lse(y), concat({values(ct), -delta}, 3)};
  return concat(apart(operands,
                      [&](const Tensors& x) {
                        const auto read = [](const Tensors& rows, Tensor keys, Tensor v, const auto& unread) {
                          const Tensor w = exp(unread(matmul(rows[0], keys, {.b = true}) - rows[1]));
                          return concat({matmul(w, v), sum(w, {-1}, kKeep)}, -1);
                        };
                        const Reading sums{{x[0], x[3]}, x[1], x[2], window_of(attrs), read};
                        return vjp({sums.all()}, {x[4]}, {x[0], x[1], x[2]});
                      }),
                3);
}

// ---- kernels ----

AttentionSizes sizes_of(const OpCall& c) {
  const Shape& q = c.in[0].shape;
  return {.time = q[2], .dim = q[3], .out = c.in[2].shape[3], .window = window_of(c.attrs)};
}

// Scores that are not masked, of all heads.
double scores_of(const OpCall& c) {
  const AttentionSizes s = sizes_of(c);
  const auto time = static_cast<double>(s.time);
  const double window = s.window == 0 || s.window > s.time ? time : static_cast<double>(s.window);
  return static_cast<double>(c.in[0].shape[0] * c.in[0].shape[1]) *
         (window * time - window * (window - 1) / 2);
}

OpCost forward_cost(const OpCall& c) {
  const AttentionSizes s = sizes_of(c);
  return {scores_of(c) * static_cast<double>(2 * s.dim + 2 * s.out), elementwise_cost(c).bytes};
}

OpCost backward_cost(const OpCall& c) {
  const AttentionSizes s = sizes_of(c);
  return {scores_of(c) * static_cast<double>(6 * s.dim + 4 * s.out), elementwise_cost(c).bytes};
}

// What kernels work in: some elements of T for each worker, from the begin of a cache line on.
template <class T>
class Scratch {
 public:
  Scratch(std::int64_t each, int workers)
      : each_((each + kLine - 1) / kLine * kLine), memory_(uz(each_ * workers + kLine)) {}
  T* of(int worker) {
    constexpr std::uintptr_t kBytes = kLine * sizeof(T);
    const auto begin = reinterpret_cast<std::uintptr_t>(memory_.data());
    return reinterpret_cast<T*>((begin + kBytes - 1) / kBytes * kBytes) + worker * each_;
  }

 private:
  static constexpr std::int64_t kLine = 64 / sizeof(T);
  std::int64_t each_;
  std::vector<T> memory_;
};

// Calls fn(operands, out, part, scratch) for 0 <= part < parts, on threads where there is enough to do.
template <class T, class Fn>
OpKernel in_parts(const OpCall& c, std::int64_t parts, Fn fn) {
  constexpr double kShared = 1 << 23;  // flops
  const int workers = c.op.cost(c).flops < kShared ? 1 : thread_count();
  return [=, scratch = Scratch<T>(sizes_of(c).scratch(), workers)](const std::byte* const* in,
                                                                   std::byte* out) mutable {
    const auto part = [&](int i, int worker) {
      fn(reinterpret_cast<const T* const*>(in), reinterpret_cast<T*>(out), i, scratch.of(worker));
    };
    if (workers > 1) return in_parallel(static_cast<int>(parts), workers, std::ref(part));
    for (int i = 0; i < parts; ++i) part(i, 0);
  };
}

template <class T>
OpKernel forward_kernel(const OpCall& c) {
  const AttentionSizes s = sizes_of(c);
  const std::int64_t heads = c.in[0].shape[0] * c.in[0].shape[1], blocks = s.blocks();
  return in_parts<T>(
      c, heads * blocks,
      [=, &kernel = attention_kernel<T>()](const T* const* in, T* out, std::int64_t part, T* scratch) {
        const std::int64_t h = part / blocks, row = h * s.time;
        kernel.forward(s, in[0] + row * s.dim, in[1] + row * s.dim, in[2] + row * s.out,
                       out + row * (s.out + 1), part % blocks, scratch);
      });
}

template <class T>
OpKernel backward_kernel(const OpCall& c) {
  const AttentionSizes s = sizes_of(c);
  const std::int64_t heads = c.in[0].shape[0] * c.in[0].shape[1];
  return in_parts<T>(
      c, heads, [=, &kernel = attention_kernel<T>()](const T* const* in, T* out, std::int64_t h, T* scratch) {
        const std::int64_t row = h * s.time;
        kernel.backward(s, in[0] + row * s.dim, in[1] + row * s.dim, in[2] + row * s.out,
                        in[3] + row * (s.out + 1), in[4] + row * (s.out + 1), out + row * (2 * s.dim + s.out),
                        scratch);
      });
}

// ---- rules ----

Spec infer_attention(const OpCall& c) {
  for (const Spec& x : c.in) {
    if (!is_float(x.dtype) || x.dtype != c.in[0].dtype)
      c.dtype_error("operands must be of one floating type; cast() them");
    if (x.rank() != 4 || x.size() == 0)
      c.shape_error("needs q and k [batch, heads, time, dim] and v [batch, heads, time, out], none empty");
    if (!std::equal(x.shape.begin(), x.shape.begin() + 3, c.in[0].shape.begin()))
      c.shape_error("batch, heads or time differ; need as many of each");
  }
  if (c.in[1].shape != c.in[0].shape) c.shape_error("need q.dim == k.dim");
  if (window_of(c.attrs) < 0) c.shape_error("the window must be positive, or 0 for no bound");
  Spec out = c.in[2];
  ++out.shape[3];
  return out;
}

Spec infer_derivative(const OpCall& c) {
  const Spec y = infer_attention({c.op, c.in.first(3), c.attrs, {}, c.nodes, c.ids});
  if (c.in[3] != y || c.in[4] != y)
    c.shape_error(fmt::format("needs an output and a cotangent of causal_attention, {} each", to_string(y)));
  Spec out = c.in[0];
  out.shape[3] = 2 * c.in[0].shape[3] + c.in[2].shape[3];
  return out;
}

// Sequences and heads are independent.
int attention_axes(const OpCall&, int, int axis) { return axis < 2 ? axis : -1; }

std::string window_text(const Attrs& a) {
  return window_of(a) == 0 ? "" : fmt::format("window {}", window_of(a));
}

Tensor attention_vjp(const VjpCall& c) {
  const Tensor d = emit(causal_attention_derivative_op, {c.in[0], c.in[1], c.in[2], c.out, c.ct}, c.attrs);
  const std::int64_t dim = c.in[0].dim(3), begin = c.input * dim;
  return slice(d, 3, begin, begin + c.in[uz(c.input)].dim(3));
}

Tensor derivative_vjp(const VjpCall& c) {
  Tensors in(c.in.begin(), c.in.end());
  in.push_back(c.ct);
  return apart(in, [&](const Tensors& x) {
    const Tensors given(x.begin(), x.end() - 1);
    return vjp({derivative_in_ops(given, c.attrs)}, {x.back()}, given);
  })[uz(c.input)];
}

}  // namespace

constinit const Op causal_attention_op = {
    .name = "causal_attention",
    .doc =
        "Rows of softmax(q k') v, where q reads its own key and those before it, and the logarithm of the sum "
        "of the exponentials of the scores behind each.",
    .infer = infer_attention,
    .vjp = attention_vjp,
    .expand = attention_in_ops,
    .axes = attention_axes,
    .cost = forward_cost,
    .cpu =
        [](const OpCall& c) {
          return c.out.dtype == DType::f32 ? forward_kernel<float>(c) : forward_kernel<double>(c);
        },
    .describe = window_text,
    .read_attrs = attrs_from<CausalAttentionAttrs>,
    .samples = []() -> std::vector<OpSample> {
      return {{.inputs = {{{2, 3, 4, 5}}, {{2, 3, 4, 5}}, {{2, 3, 4, 1}}}, .attrs = CausalAttentionAttrs{0}},
              {.inputs = {{{1, 2, 5, 3}}, {{1, 2, 5, 3}}, {{1, 2, 5, 4}}}, .attrs = CausalAttentionAttrs{2}},
              {.inputs = {{{1, 2, 3, 4}}, {{1, 2, 3, 5}}, {{1, 2, 3, 4}}},
               .attrs = CausalAttentionAttrs{0},
               .error = "need q.dim == k.dim"},
              {.inputs = {{{1, 2, 3, 4}}, {{1, 2, 3, 4}}, {{1, 2, 5, 4}}},
               .attrs = CausalAttentionAttrs{0},
               .error = "batch, heads or time differ"},
              {.inputs = {{{3, 4}}, {{3, 4}}, {{3, 4}}},
               .attrs = CausalAttentionAttrs{0},
               .error = "needs q and k [batch, heads, time, dim]"},
              {.inputs = {{{1, 2, 3, 4}}, {{1, 2, 3, 4}}, {{1, 2, 3, 4}, 0, 1, DType::i32}},
               .attrs = CausalAttentionAttrs{0},
               .error = "of one floating type; cast() them"},
              {.inputs = {{{1, 2, 3, 4}}, {{1, 2, 3, 4}}, {{1, 2, 3, 4}}},
               .attrs = CausalAttentionAttrs{-1},
               .error = "the window must be positive"}};
    }};

constinit const Op causal_attention_derivative_op = {
    .name = "causal_attention_derivative",
    .doc = "Cotangents of q, k and v, side by side, from the output of causal_attention and its cotangent.",
    .infer = infer_derivative,
    .vjp = derivative_vjp,
    .expand = derivative_in_ops,
    .axes = attention_axes,
    .cost = backward_cost,
    .cpu =
        [](const OpCall& c) {
          return c.out.dtype == DType::f32 ? backward_kernel<float>(c) : backward_kernel<double>(c);
        },
    .describe = window_text,
    .read_attrs = attrs_from<CausalAttentionAttrs>,
    .samples = []() -> std::vector<OpSample> {
      return {{.inputs = {{{2, 1, 3, 2}}, {{2, 1, 3, 2}}, {{2, 1, 3, 4}}, {{2, 1, 3, 5}}, {{2, 1, 3, 5}}},
               .attrs = CausalAttentionAttrs{0}},
              {.inputs = {{{1, 2, 4, 3}}, {{1, 2, 4, 3}}, {{1, 2, 4, 1}}, {{1, 2, 4, 2}}, {{1, 2, 4, 2}}},
               .attrs = CausalAttentionAttrs{2}},
              {.inputs = {{{1, 2, 3, 4}}, {{1, 2, 3, 4}}, {{1, 2, 3, 4}}, {{1, 2, 3, 5}}, {{1, 2, 3, 4}}},
               .attrs = CausalAttentionAttrs{0},
               .error = "needs an output and a cotangent of causal_attention, f64[1,2,3,5] each"}};
    }};

namespace ttt {

Tensor causal_attention(Tensor q, Tensor k, Tensor v, std::int64_t window, Loc loc) {
  return emit(causal_attention_op, {q, k, v}, CausalAttentionAttrs{window}, loc);
}

}  // namespace ttt

}  // namespace nestgrad
