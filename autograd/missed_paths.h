// Derivatives inside the body of a scan with respect to a tensor from outside. They take what the body is given as it is, and so
// would miss the way on which the tensor reaches the same value through a carry or a sequence: GradError instead of half a
// derivative. Example: in a step c -> c - grad(f(c, w), w), what c holds was made of w by the steps before.
#pragma once

#include "autograd/grad.h"

namespace nestgrad {

// When the derivative is taken: does x come into g by another way, on which a seed depends? It is noted in g too.
void check_ways_in(Graph& g, Tensor x, std::span<const GradSeed> seeds);

// When the body is whole: for the derivatives noted in it, do carries depend on the same x after a step? carries, nexts: nodes of
// the body, before a step and after it. What the body reads of graphs between it and x is noted there.
void check_ways_through_steps(Graph& body, const std::vector<NodeId>& carries,
                              const std::vector<NodeId>& nexts, Loc loc);

}  // namespace nestgrad
