#include "models/attention.h"

#include <cmath>

namespace nestgrad {

namespace {
constexpr double kMasked = -1e30;  // finite, so that a fully masked row cannot become NaN
}

Tensor Attention::operator()(Tensor x, ttt::Stream& stream) const {
  const Scope scope(name_);
  const std::int64_t time = x.dim(1), heads = options_.heads, dim = options_.width / heads;
  const DType dtype = x.dtype();
  const ttt::Task::Joined joined = task_->views(x, stream);
  Tensor positions = iota(dtype, {time}, 0), mask;  // mask [time, keys]
  if (stream.stepping()) {
    positions = stream.counter(name_ + ".position", capacity_, dtype);
    mask = less_equal(iota(dtype, {1, capacity_}, 1), positions);
  } else {
    mask = less_equal(iota(dtype, {1, time}, 1), reshape(positions, {time, 1}));
  }
  const Tensor q = rope(ttt::split_heads(joined.q, heads), positions, options_.rope_theta);
  Tensor k = rope(ttt::split_heads(joined.k, heads), positions, options_.rope_theta);
  Tensor v = ttt::split_heads(joined.v, heads);
  if (stream.stepping()) {
    const Tensor here = equal(iota(dtype, {capacity_, 1}, 0), positions);
    const auto remember = [&](Tensor row, const std::string& id) {
      const Tensor cache = stream.state(id, zeros(dtype, {x.dim(0), heads, capacity_, dim}));
      const Tensor rows = select(here, row, cache);
      stream.carry(id, rows);
      return rows;
    };
    k = remember(k, name_ + ".keys");
    v = remember(v, name_ + ".values");
  }
  const Tensor scores = matmul(q, k, {.b = true}) * (1.0 / std::sqrt(static_cast<double>(dim)));
  const Tensor weights = softmax(select(mask, scores, kMasked), -1);
  Tensor out = ttt::join_heads(matmul(weights, v));
  if (options_.gate)
    out = gelu_tanh(ttt::linear(x, params_("g_proj.weight", {options_.width, options_.width}))) * out;
  return ttt::linear(out, params_("o_proj.weight", {options_.width, options_.width}));
}

}  // namespace nestgrad
