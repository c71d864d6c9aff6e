// A block of the end-to-end model (models/end_to_end.h), over a whole text, over a chunk behind a cache, and token by
// token: the same numbers each time.
#pragma once

#include <span>

#include "models/end_to_end.h"

namespace nestgrad {

// Keys (not yet rotated) and values of the tokens before a chunk, [batch, heads, rows, dim]. Undefined: none are kept.
struct EndToEndCache {
  Tensor keys, values;
};

// Cut out of parameters that are stacked over all blocks.
class EndToEndBlock {
 public:
  // h: where its parameters are; i: its place among all blocks; learning: how many learn; prime: its place among
  // these, or -1: it does not learn. The configuration outlives it.
  EndToEndBlock(const EndToEndConfig& config, const Params& h, std::int64_t i, std::int64_t learning,
                std::int64_t prime);

  // h: [batch, time, width], likewise the result. w: weights of the prime MLP, [batch, in, out]; empty: it has none.
  // The whole text.
  Tensor whole(Tensor h, std::span<const Tensor> w) const;
  // A chunk behind what the cache has kept, which is then given the chunk's rows. there [rows]: 0 where a row of the
  // cache is no token.
  Tensor chunk(Tensor h, std::span<const Tensor> w, EndToEndCache& cache, Tensor there) const;
  // One token of a block that does not learn, at position [1], or [batch, 1, 1, 1] where each sequence has its own; keys and values of those before it are states of the
  // stream under this name.
  Tensor token(Tensor h, Tensor position, ttt::Stream& stream, const std::string& name) const;

  // w1, w2, w3 of the prime MLP before the first token, [in, out]; empty: it has none.
  const std::vector<Tensor>& prime_start() const { return prime_start_; }

 private:
  struct Views {
    Tensor q, k, v;
  };
  Views views(Tensor h) const;
  Tensor norm(Tensor x, Tensor weight) const;
  Tensor rotated(Tensor rows, std::int64_t from) const;
  Tensor behind_attention(Tensor h, Tensor mixed, std::span<const Tensor> w) const;

  const EndToEndConfig& config_;
  Tensor seq_norm_, seq_post_norm_, q_norm_, k_norm_, wq_, wk_, wv_, wo_, ffn_norm_, ffn_post_norm_, w1_, w2_,
      w3_;
  Tensor prime_norm_, prime_post_norm_;
  std::vector<Tensor> prime_start_;
};

}  // namespace nestgrad
