#include "models/end_to_end_block.h"

#include <cmath>

#include "ttt/attention.h"
#include "ttt/layer.h"
#include "ttt/masked_softmax.h"

namespace nestgrad {

namespace {

Tensor swiglu(Tensor x, Tensor w1, Tensor w2, Tensor w3) {
  return matmul(silu(matmul(x, w1)) * matmul(x, w3), w2);
}

// Parameters stacked over `count` blocks, and the one at a place of them.
struct Stacked {
  const Params params;
  std::int64_t count, at;
  Tensor operator()(const char* name, const Shape& shape, Init init) const {
    Shape all = shape;
    all.insert(all.begin(), count);
    return reshape(slice(params(name, all, init), 0, at, at + 1), shape);
  }
  Tensor gain(const char* name, std::int64_t size) const { return (*this)(name, {size}, Init::ones()); }
  Tensor matrix(const char* name, std::int64_t in, std::int64_t out) const {
    return (*this)(name, {in, out}, {});
  }
};

// [own, before + own]: 1 where a chunk's token reads a row.
Tensor in_window(DType dtype, std::int64_t own, std::int64_t before, std::int64_t window) {
  const Shape shape{own, before + own};
  const Tensor back = iota(dtype, shape, 0) + static_cast<double>(before) - iota(dtype, shape, 1);
  return (1.0 - less(back, 0.0)) * less(back, static_cast<double>(window));
}

}  // namespace

EndToEndBlock::EndToEndBlock(const EndToEndConfig& c, const Params& h, std::int64_t i, std::int64_t learning,
                             std::int64_t prime)
    : config_(c) {
  const std::int64_t width = c.hidden_size, hidden = c.intermediate_size, dim = width / c.num_attention_heads;
  const Stacked own{h.at("blocks"), c.num_hidden_layers, i};
  seq_norm_ = own.gain("seq_norm.weight", width);
  seq_post_norm_ = own.gain("seq_post_norm.weight", width);
  q_norm_ = own.gain("seq_modeling_block.q_norm.weight", dim);
  k_norm_ = own.gain("seq_modeling_block.k_norm.weight", dim);
  wq_ = own.matrix("seq_modeling_block.wq.weight", width, width);
  wk_ = own.matrix("seq_modeling_block.wk.weight", width, width);
  wv_ = own.matrix("seq_modeling_block.wv.weight", width, width);
  wo_ = own.matrix("seq_modeling_block.wo.weight", width, width);
  ffn_norm_ = own.gain("ffn_norm.weight", width);
  ffn_post_norm_ = own.gain("ffn_post_norm.weight", width);
  w1_ = own.matrix("feed_forward.w1.weight", width, hidden);
  w2_ = own.matrix("feed_forward.w2.weight", hidden, width);
  w3_ = own.matrix("feed_forward.w3.weight", width, hidden);
  if (prime < 0) return;
  const Stacked last{h.at("prime_storage"), learning, prime};
  prime_norm_ = last.gain("ffn_prime_norm.weight", width);
  prime_post_norm_ = last.gain("ffn_prime_post_norm.weight", width);
  prime_start_ = {last.matrix("feed_forward_prime.w1.weight", width, hidden),
                  last.matrix("feed_forward_prime.w2.weight", hidden, width),
                  last.matrix("feed_forward_prime.w3.weight", width, hidden)};
}

Tensor EndToEndBlock::norm(Tensor x, Tensor weight) const {
  return rms_norm(x, weight, config_.rms_norm_eps);
}

// rows [.., rows, dim] of tokens that follow each other, the first at `from`.
Tensor EndToEndBlock::rotated(Tensor rows, std::int64_t from) const {
  const Tensor positions = iota(rows.dtype(), {rows.dim(-2)}, 0);
  return rope(rows, from == 0 ? positions : positions + static_cast<double>(from), config_.rope_theta);
}

EndToEndBlock::Views EndToEndBlock::views(Tensor h) const {
  const Tensor x = norm(h, seq_norm_);
  const auto heads = [&](Tensor w) { return ttt::split_heads(matmul(x, w), config_.num_attention_heads); };
  return {norm(heads(wq_), q_norm_), norm(heads(wk_), k_norm_), heads(wv_)};
}

Tensor EndToEndBlock::behind_attention(Tensor h, Tensor mixed, std::span<const Tensor> w) const {
  h = h + norm(matmul(ttt::join_heads(mixed), wo_), seq_post_norm_);
  if (!w.empty()) h = h + norm(swiglu(norm(h, prime_norm_), w[0], w[1], w[2]), prime_post_norm_);
  return h + norm(swiglu(norm(h, ffn_norm_), w1_, w2_, w3_), ffn_post_norm_);
}

Tensor EndToEndBlock::whole(Tensor h, std::span<const Tensor> w) const {
  const Views v = views(h);
  const Tensor mixed = ttt::attention(rotated(v.q, 0), rotated(v.k, 0), v.v, {.window = config_.window});
  return behind_attention(h, mixed, w);
}

Tensor EndToEndBlock::chunk(Tensor h, std::span<const Tensor> w, EndToEndCache& cache, Tensor there) const {
  const Views v = views(h);
  const std::int64_t own = h.dim(1), before = cache.keys.defined() ? cache.keys.dim(2) : 0,
                     all = before + own;
  Tensor keys = v.k, values = v.v, reads = in_window(h.dtype(), own, before, config_.window);
  if (before > 0) {
    keys = concat({cache.keys, keys}, 2), values = concat({cache.values, values}, 2);
    cache = {slice(keys, 2, own, all), slice(values, 2, own, all)};
    reads = reads * concat({there, broadcast_to(constant(1.0, h.dtype()), {own})}, 0);
  }
  const double scale = 1.0 / std::sqrt(static_cast<double>(v.q.dim(3)));
  const Tensor scores = matmul(rotated(v.q, before), rotated(keys, 0), {.b = true}) * scale;
  return behind_attention(h, matmul(ttt::masked_softmax(reads, scores), values), w);
}

Tensor EndToEndBlock::token(Tensor h, Tensor position, ttt::Stream& stream, const std::string& name) const {
  const Views v = views(h);
  const auto at = [&](Tensor rows) { return rope(rows, position, config_.rope_theta); };
  const Tensor mixed = ttt::attention_step(at(v.q), at(v.k), v.v, {.window = config_.window}, stream, name);
  return behind_attention(h, mixed, {});
}

}  // namespace nestgrad
