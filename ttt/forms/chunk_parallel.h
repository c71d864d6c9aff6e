// The chunk-parallel form, for one step a chunk that is nonlinear in the gradient but affine in the weights: no
// factor depends on a learning weight, so the gradients of all chunks, and what the optimiser makes of them
// (momentum, Muon, clipping), are computed at once, and the weights are a running sum W <- p W + T.
#pragma once

#include "ttt/forms/per_chunk.h"

namespace nestgrad::ttt {

// FormError if the weight's own step is not p W + T with one number p a chunk.
void require_chunk_split(const InnerOptimizer& optimizer, const State& state, std::size_t weight,
                         const Gates& columns);

// Its block is all whole chunks of a sequence.
class ChunkParallelForm : public FactoredChunkForm {
 public:
  using FactoredChunkForm::FactoredChunkForm;
  BlockResult run(const State& state, const Block& block, const Laws&) const override;

 private:
  struct History;
  Tensor added(const State& start, std::size_t weight, const std::vector<Tensor>& slots, Tensor gradient,
               const Gates& columns) const;
  std::vector<Tensor> of_chunks(const State& start, const Block& block, const Gates& columns) const;
  History history(const State& start, std::size_t weight, Tensor made, const Gates& columns) const;
};

}  // namespace nestgrad::ttt
