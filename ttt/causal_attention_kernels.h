// Causal softmax attention and its derivative on a CPU: what they cost, and how heads, blocks of queries and parts of
// the keys are shared among threads. The kernels themselves are ops/kernels/attention.h.
#pragma once

#include "engine/core/op.h"

namespace nestgrad {

OpCost causal_attention_cost(const OpCall& call);
OpCost causal_attention_derivative_cost(const OpCall& call);
OpKernel causal_attention_kernel(const OpCall& call);
OpKernel causal_attention_derivative_kernel(const OpCall& call);

}  // namespace nestgrad
