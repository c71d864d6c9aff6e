// Flow: where an axis goes. From each op's `axes` fact follows whether the slices of a traced function along
// an axis (tokens, sequences, heads) are independent of each other: the condition that makes the dual form
// sound, and that lets a thread take whole slices.
#pragma once

#include <string>

#include "engine/body.h"

namespace nestgrad {

// How a value relates to the slices being followed.
struct Flow {
  enum class Kind : std::uint8_t { free, along, mixed };
  Kind kind = Kind::free;
  int axis = -1;        // along: slice i of the followed axis is slice i of this axis (from the front)
  NodeId culprit = -1;  // mixed: the first node that combined slices
  std::string why;

  static Flow free() { return {}; }
  static Flow along(int axis) { return {Kind::along, axis, -1, {}}; }
};

// What of a free value that varies along the followed axis, a positional constant?
enum class Positional : std::uint8_t {
  refused,  // it makes the result mixed: slices are to be independent and treated alike
  allowed,  // slices are to be independent
};

// One flow per node, given those of the inputs (all other leaves are free).
std::vector<Flow> follow(const std::deque<Node>& nodes, const std::vector<std::pair<NodeId, Flow>>& inputs,
                         Positional positional = Positional::refused);

}  // namespace nestgrad
