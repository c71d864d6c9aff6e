#include "ttt/causal_attention_in_ops.h"

#include <algorithm>

#include "autograd/grad.h"
#include "autograd/scan.h"
#include "engine/core/index.h"
#include "ops/attrs.h"
#include "ops/ops.h"
#include "ttt/masked_softmax.h"

namespace nestgrad {

namespace {

std::int64_t window_of(const Attrs& a) { return a.as<CausalAttentionAttrs>().window; }

// Blocks of kBlock queries, whose scores stay in the cache and are computed again for the derivative. They are
// loops over the keys that the last of kGroup blocks reads.
constexpr std::int64_t kBlock = 64, kGroup = 4;

// What some queries make of the keys and values before them. rows: what there is of each query, q first; reads,
// [queries, keys]: not zero where a query reads a key.
using ReadFn = std::function<Tensor(const Tensors& rows, Tensor keys, Tensor values, Tensor reads)>;

// [batch, heads, time, ..] as rows of the groups: [batch, groups, time * heads / groups, ..].
Tensor in_groups(Tensor x, std::int64_t groups) {
  const std::int64_t each = x.dim(1) / groups;
  if (each == 1) return x;
  return reshape(permute(reshape(x, {x.dim(0), groups, each, x.dim(2), x.dim(3)}), {0, 1, 3, 2, 4}),
                 {x.dim(0), groups, x.dim(2) * each, x.dim(3)});
}

// Queries and what they read. Heads that read the same keys are rows of one product.
struct Reading {
  Tensors rows;       // [batch, groups, time * each, ..]
  std::int64_t each;  // heads of a group, whose rows of a time lie one after the other
  Tensor k, v;        // [batch, groups, time, ..]
  std::int64_t window;
  ReadFn read;

  // The times begin .. end of the rows, [rows, 1].
  Tensor times_of_rows(std::int64_t begin, std::int64_t end) const {
    const Tensor times = iota(k.dtype(), {end - begin, 1}, 0) + static_cast<double>(begin);
    if (each == 1) return times;
    return reshape(broadcast_to(times, {end - begin, each}), {(end - begin) * each, 1});
  }
  // Of queries at the times `now`, [queries, 1], and keys at `times`, [1, keys].
  Tensor at(const Tensors& queries, Tensor keys, Tensor values, Tensor now, Tensor times) const {
    Tensor reads = less_equal(times, now);
    if (window != 0) reads = reads * less(now - static_cast<double>(window), times);
    return read(queries, keys, values, reads);
  }
  Tensor group(std::int64_t begin, std::int64_t end) const;
  Tensor all() const;
};

// Of the queries begin <= t < end, all in loops of kBlock but for what is left over.
Tensor Reading::group(std::int64_t begin, std::int64_t end) const {
  const DType dtype = k.dtype();
  const std::int64_t batch = k.dim(0), groups = k.dim(1), blocks = (end - begin) / kBlock;
  const std::int64_t first = window == 0 ? 0 : std::max<std::int64_t>(0, begin - window + 1);
  const Tensor keys = slice(k, 2, first, end), values = slice(v, 2, first, end);
  const Tensor times = iota(dtype, {1, end - first}, 1) + static_cast<double>(first);
  Tensors xs;
  for (const Tensor& x : rows) xs.push_back(slice(x, 2, begin * each, end * each));
  if (blocks == 0 || end - begin != blocks * kBlock)
    return at(xs, keys, values, times_of_rows(begin, end), times);
  for (Tensor& x : xs)
    x = permute(reshape(x, {batch, groups, blocks, kBlock * each, x.dim(3)}), {2, 0, 1, 3, 4});
  xs.push_back(iota(dtype, {blocks, 1, 1}, 0) * static_cast<double>(kBlock) + static_cast<double>(begin));
  const Tensor in_block = times_of_rows(0, kBlock);
  const auto step = [&](const Tensors&, const Tensors& x) -> StepOutput {
    return {{}, {at({x.begin(), x.end() - 1}, keys, values, in_block + x.back(), times)}};
  };
  const Tensor out = scan(step, {}, xs, {.checkpoint_every = 1}).ys[0];
  return reshape(permute(out, {1, 2, 0, 3, 4}), {batch, groups, (end - begin) * each, out.dim(4)});
}

Tensor Reading::all() const {
  const std::int64_t time = k.dim(2), whole = time / kBlock * kBlock;
  Tensors groups;
  for (std::int64_t begin = 0; begin < whole; begin += kGroup * kBlock)
    groups.push_back(group(begin, std::min(whole, begin + kGroup * kBlock)));
  if (whole < time) groups.push_back(group(whole, time));
  return groups.size() == 1 ? groups[0] : concat(groups, 2);
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

}  // namespace

Tensor rows_of_heads(Tensor x, std::int64_t each) {
  if (each == 1) return x;
  const std::int64_t time = x.dim(2) / each;
  return reshape(permute(reshape(x, {x.dim(0), x.dim(1), time, each, x.dim(3)}), {0, 1, 3, 2, 4}),
                 {x.dim(0), x.dim(1) * each, time, x.dim(3)});
}

Tensor causal_attention_in_ops(std::span<const Tensor> in, const Attrs& attrs) {
  const auto read = [](const Tensors& rows, Tensor keys, Tensor values, Tensor reads) {
    const Tensor scores = matmul(rows[0], keys, {.b = true}), top = ttt::largest_read(reads, scores),
                 e = ttt::exponentials(reads, scores, top), total = sum(e, {-1}, kKeep),
                 log_total = log(total), lse = top + log_total;
    return concat({matmul(e / total, values), lse, stop_gradient((top - lse) + log_total)}, -1);
  };
  const std::int64_t groups = in[1].dim(1), each = in[0].dim(1) / groups;
  return rows_of_heads(Reading{{in_groups(in[0], groups)}, each, in[1], in[2], window_of(attrs), read}.all(),
                       each);
}

// With weights w = e^(scores - lse - rest), where lse and rest are held fixed: the derivative of w v and of the sums
// of w, whose cotangents are those of the output and -delta. For w sums to one. The rest is zero but for rounding, and
// so is its derivative: its cotangent is not read.
Tensor causal_attention_derivative_in_ops(std::span<const Tensor> in, const Attrs& attrs) {
  const std::int64_t groups = in[1].dim(1), each = in[0].dim(1) / groups, time = in[1].dim(2),
                     out = in[2].dim(3);
  const Tensor q = in_groups(in[0], groups), y = in_groups(in[3], groups), ct = in_groups(in[4], groups);
  const auto values = [&](Tensor x) { return slice(x, 3, 0, out); };
  const auto lse = [&](Tensor x) { return slice(x, 3, out, out + 1); };
  const Tensor rest = slice(y, 3, out + 1, out + 2);
  const Tensor delta = sum(values(y) * values(ct), {-1}, kKeep) - lse(ct);
  const Tensor operands[] = {q, in[1], in[2], lse(y), rest, concat({values(ct), -delta}, 3)};
  Tensors d = apart(operands, [&](const Tensors& x) {
    const auto read = [](const Tensors& rows, Tensor keys, Tensor v, Tensor reads) {
      const Tensor w = ttt::exponentials(reads, matmul(rows[0], keys, {.b = true}), rows[1], rows[2]);
      return concat({matmul(w, v), sum(w, {-1}, kKeep)}, -1);
    };
    const Reading sums{{x[0], x[3], x[4]}, each, x[1], x[2], window_of(attrs), read};
    return vjp({sums.all()}, {x[5]}, {x[0], x[1], x[2]});
  });
  if (each != 1) d[0] = reshape(d[0], {q.dim(0), groups, time, each * q.dim(3)});
  return concat(d, 3);
}

Tensor causal_attention_derivative_vjp(const VjpCall& c) {
  Tensors in(c.in.begin(), c.in.end());
  in.push_back(c.ct);
  return apart(in, [&](const Tensors& x) {
    const Tensors given(x.begin(), x.end() - 1);
    return vjp({causal_attention_derivative_in_ops(given, c.attrs)}, {x.back()}, given);
  })[uz(c.input)];
}

}  // namespace nestgrad
