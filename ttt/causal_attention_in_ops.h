// Causal softmax attention and its derivative in ops, block of queries by block, for derivatives of higher orders
// and for devices without their kernels: what the rows of ttt/causal_attention.cpp expand to.
#pragma once

#include "engine/core/op.h"

namespace nestgrad {

Tensor causal_attention_in_ops(std::span<const Tensor> in, const Attrs& attrs);
Tensor causal_attention_derivative_in_ops(std::span<const Tensor> in, const Attrs& attrs);
Tensor causal_attention_derivative_vjp(const VjpCall& call);
// [batch, groups, time * each, ..], where the rows of the heads of a group lie one after the other for every time ->
// [batch, groups * each, time, ..].
Tensor rows_of_heads(Tensor rows, std::int64_t each);

}  // namespace nestgrad
