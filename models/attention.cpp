#include "models/attention.h"

#include "ttt/attention.h"

namespace nestgrad {

Tensor Attention::operator()(Tensor x, ttt::Stream& stream) const {
  const Scope scope(name_);
  const ttt::Task::Joined joined = task_->views(x, stream);
  const Tensor positions = stream.stepping() ? stream.counter(name_ + ".position", capacity_, x.dtype())
                                             : iota(x.dtype(), {x.dim(1)}, 0);
  const Tensor q = rope(ttt::split_heads(joined.q, options_.heads), positions, options_.rope_theta);
  const Tensor k = rope(ttt::split_heads(joined.k, options_.heads), positions, options_.rope_theta);
  const Tensor v = ttt::split_heads(joined.v, options_.heads);
  const ttt::AttentionOptions options{.capacity = capacity_};
  Tensor out = ttt::join_heads(stream.stepping() ? ttt::attention_step(q, k, v, options, stream, name_)
                                                 : ttt::attention(q, k, v, options));
  if (options_.gate)
    out = gelu_tanh(ttt::linear(x, params_("g_proj.weight", {options_.width, options_.width}))) * out;
  return ttt::linear(out, params_("o_proj.weight", {options_.width, options_.width}));
}

}  // namespace nestgrad
