// Does an optimiser's step keep sequences, heads and chunks apart? Its pieces are texts too, and one that takes the mean over the
// batch, or counts axes from the front, gives other numbers beside other sequences, or where chunks lie side by side.
#pragma once

#include "ttt/optimizer.h"
#include "ttt/state.h"

namespace nestgrad::ttt {

// Why the step of this weight lets them meet, in words; empty if it does not. columns: gates as a step sees them. chunks: as in the
// chunk-parallel form, with an axis of chunks before batch and heads.
std::string why_members_meet(const InnerOptimizer& optimizer, const State& state, std::size_t weight,
                             const Gates& columns, bool chunks);

}  // namespace nestgrad::ttt
