// Which values of a graph are the same in all processes of a run, and which are each process's own.
#pragma once

#include <deque>

#include "engine/core/graph.h"

namespace nestgrad {

// GraphError where an op joins a value that is the same everywhere with one that is each process's own: its derivative by the
// first would be this process's part of the whole. Inputs are the same everywhere unless own() says otherwise; constants
// are of either kind, and so is what is made of them alone. In a loop each carry, sequence and output has a kind of its own, the
// same in all steps. Nothing to find in a graph without collectives.
void check_spread(const std::deque<GraphNode>& nodes);

}  // namespace nestgrad
