// Causal softmax attention as one op: a kernel that never has more scores than those of 64 queries and 64 keys,
// and one for its derivative. Beside them the same in ops, block by block, for derivatives of higher orders
// and for devices without these kernels.
#pragma once

#include "engine/core/graph.h"

namespace nestgrad::ttt {

// q [batch, heads, time, dim], k [batch, groups, time, dim], v [batch, groups, time, out] -> [batch, heads, time,
// out + 2]: the rows of softmax(q k') v, where a query reads its own key and those before it (of these the last
// `window`, 0: all), and behind each the logarithm of the sum of the exponentials of its scores and what rounding
// took from that. None may be empty. groups divides heads: head h reads the keys and values of group
// h / (heads / groups), as in grouped-query attention (Ainslie et al. 2023; one group: multi-query attention, Shazeer
// 2019), where they lie. The derivative makes the weights again from both numbers: they are as exact as those of the
// output, however large the (finite) scores are. What rounding took is held constant: its derivative is zero.
Tensor causal_attention(Tensor q, Tensor k, Tensor v, std::int64_t window, Loc loc = Loc::current());

}  // namespace nestgrad::ttt
