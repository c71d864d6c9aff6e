// Flow: where an axis goes. From each op's `axes` and `sums_over` follows whether the slices of a traced
// function along an axis (tokens, sequences, heads) are independent of each other: the condition that makes
// the dual form sound, and that lets a thread take whole slices.
#pragma once

#include <string>

#include "engine/core/body.h"

namespace nestgrad {

// How a value relates to the slices being followed.
struct AxisFlow {
  enum class Kind : std::uint8_t {
    free,     // it has nothing to do with them
    along,    // slice i of the followed axis is slice i of `axis`
    partial,  // a sum of terms, one per slice
    mixed,    // it combines them
  };
  Kind kind = Kind::free;
  int axis = -1;        // along: counted from the front
  NodeId culprit = -1;  // mixed: the first node that combined slices
  std::string why;

  static AxisFlow free() { return {}; }
  static AxisFlow along(int axis) { return {Kind::along, axis, -1, {}}; }
  static AxisFlow partial() { return {Kind::partial, -1, -1, {}}; }
};

struct FlowOptions {
  // May a free value that varies along the followed axis, a positional constant, meet slices? They are then
  // independent, but not treated alike.
  bool positional = false;
  // Is a sum over the slices, and what is linear in such sums, `partial`? Otherwise it is mixed.
  bool partial = false;
  // Are the rules of functions that have their own (custom_vjp) followed too, as a derivative follows them? Then a function whose
  // rule combines slices is mixed, whatever its forward pass does.
  bool rules = false;
  // Is a loop's carry that begins alike in all slices (zeros, say) looked at for whether it stays so? Otherwise it may differ from
  // slice to slice by itself, and mixes what it meets unless `positional`. It takes a walk more of a body for each such carry.
  bool constant_carries = false;
};

// One flow per node, given those of the inputs (all other leaves are free).
std::vector<AxisFlow> follow(const std::deque<GraphNode>& nodes,
                             const std::vector<std::pair<NodeId, AxisFlow>>& inputs,
                             const FlowOptions& options = {});

// The inputs that have a slice for each member along `axis` of these `rank` axes. Inputs with fewer axes lack the first ones, as in
// broadcasting.
std::vector<std::pair<NodeId, AxisFlow>> member_seeds(const std::deque<GraphNode>& nodes, int axis, int rank);

// May value `id` differ along this axis, all inputs being free to?
bool may_vary(const std::deque<GraphNode>& nodes, NodeId id, int axis);

}  // namespace nestgrad
