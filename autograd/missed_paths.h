// Derivatives inside the body of a scan with respect to a tensor from outside. What the body is given by the loop, its carries and
// sequences, is taken as it is, and so a way on which the tensor reaches the same value through a carry or a sequence would be
// missed: GradError instead of half a derivative. Example: in a step c -> c - grad(f(c, w), w), what c holds was made of w by the
// steps before.
#pragma once

#include "autograd/grad.h"

namespace nestgrad {

// When the derivative is taken in g with respect to x, of a graph outside: the captures, other than that of x, that ops outside
// make of x and that a seed depends on, as square(x), which was moved out of the body. The derivative goes on through them there.
// GradError where x comes into a seed through a carry's start or a sequence. The derivative is noted in g.
std::vector<Capture> captures_made_of(Graph& g, Tensor x, std::span<const GradSeed> seeds);

// When the body is whole: for the derivatives noted in it, do carries depend on the same x after a step? carries, nexts: nodes of
// the body, before a step and after it. What the body reads of graphs between it and x is noted there.
void check_ways_through_steps(Graph& body, const std::vector<NodeId>& carries,
                              const std::vector<NodeId>& nexts, Loc loc);

}  // namespace nestgrad
