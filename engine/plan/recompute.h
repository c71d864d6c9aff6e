// Values computed again where they are read, instead of kept from where they were made: what the passes that
// decide so have in common.
#pragma once

#include <functional>

#include "engine/core/rewrite.h"

namespace nestgrad {

struct Recomputation {
  // Does this node read a copy of its input, made for it, instead of the input itself?
  std::function<bool(NodeId reader, NodeId input)> reads_copy;
  // Is the input of a copied node copied with it?
  std::function<bool(NodeId copied, NodeId input)> is_copied_too;
};

// The graph with these copies: each is made once, before the first node that reads it, and labelled like that
// node.
Lowered recompute(const Lowered& from, const Recomputation& what);

}  // namespace nestgrad
