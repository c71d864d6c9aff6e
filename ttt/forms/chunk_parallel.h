// The chunk-parallel form (FORMS 3.5), for one step a chunk that is nonlinear in the gradient but affine in
// the weights: no factor depends on a learning weight, so the gradients of all chunks, and what the optimiser
// makes of them (momentum, Muon, clipping), are computed at once, and the weights are a running sum W <- p W
// + T.
#pragma once

#include "ttt/forms/per_chunk.h"

namespace nestgrad::ttt {

// A step split by what reaches what. FormError if a slot depends on the weight, or the weight's own step is
// not p W + T with one number p a chunk.
void require_chunk_split(const InnerOptimizer& optimizer, const State& state, std::size_t weight,
                         const Gates& columns);

struct ChunkParallelResult {
  Tensor output;  // [batch, heads, chunks * tokens, out]
  State last;
  std::vector<Tensor> losses;  // as in BlockResult
};
// All chunks of a sequence; tensors of `blocks` have the chunks in front, [chunks, batch, heads, tokens, ..].
ChunkParallelResult run_chunks(const FormOptions& options, const State& start, const Block& blocks);

}  // namespace nestgrad::ttt
