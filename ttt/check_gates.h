// What gates of the views must be, for whole sequences and for single tokens alike.
#pragma once

#include "ttt/state.h"

namespace nestgrad::ttt {

// ShapeError, ConfigError: gates that are not [batch, heads, time, 1 or in] beside k, that the learner makes itself, that do not fit a
// weight, that nothing reads, and those that its optimiser needs and does not find. all: the weights that learn, and the others.
// views are [batch, heads, time, dim].
void check_gates(const Trained& trained, const Weights& all, const Views& views);

}  // namespace nestgrad::ttt
