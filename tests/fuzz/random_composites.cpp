// The steps of random programs that are the composites of ops/ops.h.
#include <algorithm>
#include <cmath>

#include "tests/fuzz/random_graph.h"
#include "ttt/causal_attention.h"

namespace nestgrad::fuzz {

void RandomGraph::softmaxes() {
  const Value x = any_with_axes(1, true);
  const int axis = axis_of(x.t);
  switch (below(3)) {
    case 0:
      return add(softmax(x.t, axis), 1);
    case 1:
      return add(log_softmax(x.t, axis), 2 * x.most + 5);
    default:
      return add(logsumexp(x.t, axis, maybe(2)), x.most + 5);
  }
}

void RandomGraph::classified() {
  const Value x = any_with_axes(1, true);
  const Shape rows(x.t.shape().begin(), x.t.shape().end() - 1);
  add(cross_entropy(x.t, fit(index_below(x.t.dim(-1)), rows).t), 2 * x.most + 5);
}

void RandomGraph::normalised() {
  const Value x = any_with_axes(1, false);
  const double eps = draws_->of(std::vector<double>{0.5, 1e-2, 1e-6});
  const Shape row{x.t.dim(-1)};
  const DType dtype = x.t.dtype();
  const double most = std::sqrt(static_cast<double>(std::max<std::int64_t>(1, row[0])));
  const int which = below(3);
  if (which == 0) return add(l2_norm(x.t, eps), 1);
  const Value gain = fitting(dtype, maybe(3) ? Shape{} : row);
  if (which == 1) return add(rms_norm(x.t, gain.t, eps), most * gain.most);
  const Value shift = fitting(dtype, row);
  add(layer_norm(x.t, gain.t, shift.t, eps), most * gain.most + shift.most);
}

void RandomGraph::norms() {
  const Value x = any_float();
  const std::vector<int> axes = some_axes(x.t);
  add(norm(x.t, axes, maybe(2)), x.most * static_cast<double>(x.t.spec().size()));
}

void RandomGraph::turned() {
  Value x = any_with_axes(2, false);
  if (x.t.dim(-1) % 2 || x.t.dim(-1) == 0) x = fit(x, {extent(3), 2 * draws_->between(1, 2)});
  const Value positions = fitting(x.t.dtype(), {x.t.dim(-2)});
  add(rope(x.t, positions.t, draws_->of(std::vector<double>{10000, 10})), 2 * x.most);
}

void RandomGraph::attended() {
  const std::int64_t batch = extent(2), groups = extent(2), heads = groups * draws_->between(1, 2),
                     time = draws_->between(1, 4), dim = extent(3);
  const Value q = fitting(dtype_, {batch, heads, time, dim}), k = fitting(dtype_, {batch, groups, time, dim}),
              v = fitting(dtype_, {batch, groups, time, extent(3)});
  if (q.t.spec().size() == 0 || v.t.spec().size() == 0) return add(q.t, q.most);
  const double scores = q.most * k.most * static_cast<double>(dim) + 2;
  const Tensor y = ttt::causal_attention(q.t, k.t, v.t, below(4));
  // Without the last column, what rounding took: forms agree in no digit of it.
  add(slice(y, 3, 0, y.dim(3) - 1), std::max(v.most, scores));
}

// In a group of this process alone, where values are of either kind: tests/ops/collectives_test.cpp has the others.
void RandomGraph::shared() {
  const ProcessGroup alone;
  const Value x = any_of(dtype_), parts = any_with_axes(1, false);
  const int axis = axis_of(parts.t), other = axis_of(parts.t);
  switch (below(9)) {
    case 8:
      return add(rank_after(x.t, alone), x.most);
    case 7:
      return add(rank_before(x.t, alone), x.most);
    case 6:
      return add(own(x.t, alone), x.most);
    case 5:
      return add(vary(x.t, alone), x.most);
    case 4:
      return add(exchange(reshape(x.t, {1, x.t.spec().size()}), alone), x.most);
    case 3:
      return add(all_to_all(parts.t, axis, other, alone), parts.most);
    case 2:
      return add(all_gather(parts.t, axis, alone), parts.most);
    case 1:
      return add(own_part(parts.t, axis, alone), parts.most);
    default:
      return add(all_sum(x.t, alone), x.most);
  }
}

void RandomGraph::convolved() {
  const std::int64_t batch = extent(2), time = extent(4), dim = extent(3), taps = draws_->between(1, 3);
  const bool causal = maybe(2);
  const Value x = fitting(dtype_, {batch, causal ? time : time + taps - 1, dim}),
              weight = fitting(dtype_, {dim, 1, taps});
  const Tensor bias = maybe(2) ? fitting(dtype_, {dim}).t : Tensor();
  add((causal ? causal_conv1d : conv1d)(x.t, weight.t, bias), 3 * x.most * weight.most + 8);
}

void RandomGraph::convolved_twice() {
  const std::int64_t batch = extent(2), height = extent(3), width = extent(3), dim = extent(2);
  const Value x = fitting(dtype_, {batch, height, width, dim}), weight = fitting(dtype_, {dim, 1, 3, 3});
  const Tensor bias = maybe(2) ? fitting(dtype_, {dim}).t : Tensor();
  add(depthwise_conv3x3(x.t, weight.t, bias), 9 * x.most * weight.most + 8);
}

}  // namespace nestgrad::fuzz
