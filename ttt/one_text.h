// Whether traces of one text on rows of other extents, another number of tokens or an axis more in front, are one computation: what
// is computed for a token must not depend on how many tokens, chunks or sequences there are.
//
//   x * full(dtype, {1, 1}, 1.0 / x.dim(-2))             // two numbers
//   x / sum(full(dtype, {x.dim(-2), 1}, 1.0), {-2})      // one number more is added up
//   if (x.dim(-2) > 1) x = tanh(x);                      // an op is there or not
#pragma once

#include <span>
#include <string>

#include "engine/core/graph.h"

namespace nestgrad::ttt {

// What one of two traces makes of its inputs. Inputs correspond in their order, captures by what they are of.
struct TracedText {
  const Graph& graph;
  std::vector<NodeId> outs;
};

// Where b is not the same computation as a, with a's node where there is one; empty if it is. Only what outs are made of counts, and
// bodies of loops and of functions with a rule of their own are looked into. An axis of which the two have not the same extent may
// be anywhere but where an op combines its slices. one_token: one of the two has a single token, so that ops that only move
// numbers may be left out of it, and nothing is said of axes.
std::string why_not_one_text(const TracedText& a, const TracedText& b, bool one_token);

}  // namespace nestgrad::ttt
