// What happens inside of an inner loop, chunk after chunk, for a reference (ttt/reference.h). Internal.
#pragma once

#include "ttt/inner_loop.h"

namespace nestgrad::ttt {

// The state after every `every` tokens, a multiple of the chunk, and after the last: [parts, batch, heads, ..]
// in the order of State::names(). Values alone: a truncated meta-gradient does not know of these borders.
std::vector<Tensor> states_along(const Learner& learner, const State& start, const Views& views,
                                 const Policy& policy, FormChoice form, std::int64_t every);

struct InnerSteps {
  std::vector<std::string> names;  // of the weights that learn
  // Of each: the sum over a chunk's tokens (their mean with policy.average) of rate dloss/dW, at the weights
  // where the chunk's gradients are taken; before the optimiser does anything. [chunks, batch, heads, ..]
  std::vector<Tensor> gradients;
  Tensor predictions;  // f(k) at those weights, [batch, heads, time, dim]
};
InnerSteps inner_steps(const Learner& learner, const State& start, const Views& views, const Policy& policy,
                       FormChoice form);

}  // namespace nestgrad::ttt
