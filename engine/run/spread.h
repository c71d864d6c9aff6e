// Which values of a graph are the same in all processes of a run, and which are each process's own.
#pragma once

#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/core/graph.h"

namespace nestgrad {

// GraphError where an op joins a value that is the same everywhere with one that is each process's own, or one that is so in
// another group (a row and a column of a mesh, say): its derivative by one of them would be this process's part of the whole.
// Inputs are the same everywhere unless own() says otherwise; constants are of either kind, and so is what is made of them
// alone. In a loop each carry, sequence and output has a kind of its own, the same in all steps. Nothing to find in a graph
// without collectives.
// Gives what no graph shows: the inputs that are each process's own in some of its groups, and the groups in which no own() says so. There
// their numbers must be the same.
struct PartlyOwn {
  NodeId input;
  std::vector<int> same_in;  // numbers of groups, in the order in which the graph has them
};
std::vector<PartlyOwn> check_spread(const std::deque<GraphNode>& nodes);

// The groups in which a value is each process's own; none: it is the same in all processes. Nothing: made of constants alone, which is
// of any kind.
using Spread = std::optional<std::set<int>>;
std::string text_of(const Spread& s);  // of one that is something
// The kind of each value of such a graph; GraphError as above.
std::vector<Spread> spreads_of(const std::deque<GraphNode>& nodes);

}  // namespace nestgrad
