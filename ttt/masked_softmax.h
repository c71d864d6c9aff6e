// Softmax over the last axis where some of the scores are not read, right for every finite score. `reads` is not zero where
// a score is read; each row reads one at least.
//
// No number can take the place of what is not read: -1e30 is larger than a row's own scores may be, the lowest number of the
// type as large, and minus infinity is not finite (GraphOptions::check_finite). So the largest is looked for among the
// scores that are read, and the others' exponentials are zero whatever their scores.
#pragma once

#include "engine/core/tensor.h"

namespace nestgrad::ttt {

// The largest score that is read, of each row, [.., 1]. Nothing is differentiated through it: it cancels.
Tensor largest_read(Tensor reads, Tensor scores);
// e^(score - top - rest), for numbers of each row, [.., 1]; without a rest e^(score - top). The larger one is
// taken away first: near a row's largest score that difference is exact.
Tensor exponentials(Tensor reads, Tensor scores, Tensor top, Tensor rest = {});
Tensor masked_softmax(Tensor reads, Tensor scores, Loc loc = Loc::current());

}  // namespace nestgrad::ttt
