#include "models/attention.h"

#include <fmt/format.h>

#include "ttt/attention.h"

namespace nestgrad {

Tensor Attention::operator()(Tensor x, ttt::Stream& stream) const {
  const Scope scope(name_);
  const ttt::Task::Joined joined = task_->views(x, stream);
  const Tensor positions = stream.positions(name_ + ".position", x, capacity_);
  const std::int64_t heads = options_.heads, dim = options_.width / heads, groups = joined.k.dim(2) / dim;
  if (groups < 1 || joined.k.dim(2) != groups * dim || joined.v.dim(2) != joined.k.dim(2))
    throw ShapeError(fmt::format(
        "[attention] keys and values must be of whole heads of width {}, as many of each; k is {}, v "
        "is {}: give views of such widths in the Task of {}",
        dim, to_string(joined.k.spec()), to_string(joined.v.spec()), name_));
  const Tensor q = rope(ttt::split_heads(joined.q, heads), positions, options_.rope_theta);
  const Tensor k = rope(ttt::split_heads(joined.k, groups), positions, options_.rope_theta);
  const Tensor v = ttt::split_heads(joined.v, groups);
  const ttt::AttentionOptions options{.capacity = capacity_, .places = stream.places()};
  Tensor out = ttt::join_heads(ttt::attention_along(q, k, v, options, stream, name_));
  if (options_.gate)
    out = gelu_tanh(ttt::linear(x, params_("g_proj.weight", {options_.width, options_.width}))) * out;
  return ttt::linear(out, params_("o_proj.weight", {options_.width, options_.width}));
}

}  // namespace nestgrad
