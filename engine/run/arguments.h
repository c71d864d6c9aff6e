// Arguments of a plan: is what it is given what it was made for, and does each output have memory of its own?
#pragma once

#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/array.h"
#include "engine/core/graph.h"
#include "engine/core/tensor.h"
#include "engine/plan/plan_options.h"

namespace nestgrad {

// One side of a plan: the specs that it wants, and how messages name them (%0 = input 'x' f64[3] (file.cpp:9)).
struct Signature {
  std::span<const Spec> specs;
  std::span<const std::string> names;
};

// GraphError that names `rule` for an input or an output that a graph of these nodes does not have, or that has no value of its own (a
// loop), and for an input that is there twice.
void check_nodes(std::string_view rule, std::span<const NodeId> inputs, std::span<const NodeId> outputs,
                 const std::deque<GraphNode>& nodes);

// ShapeError unless there are as many arrays as are wanted, each of its spec. what: "input" or "output".
void check_given(std::string_view what, std::span<const Array> given, const Signature& wanted);

// Of each output the input that it is written over; -1: none. ConfigError for a number that no input or output
// has, or one that is given twice; ShapeError where the two have different specs.
std::vector<int> donors_of(std::span<const Donation> donate, const Signature& inputs,
                           const Signature& outputs);

// ConfigError if an output has the array of another output, or of an input that was not donated for it, or not
// the array of the one that was.
class OwnMemory {
 public:
  explicit OwnMemory(std::size_t outputs = 0) { written_.reserve(outputs); }
  void check(std::span<const Array> inputs, std::span<const Array> outputs, std::span<const int> donors);

 private:
  std::vector<std::pair<const std::byte*, int>>
      written_;  // address -> output; kept, as a run allocates nothing
};

}  // namespace nestgrad
