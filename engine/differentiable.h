// Whether a derivative passes through a use of an op, told from the op's row. Internal.
#pragma once

#include <string_view>

#include "engine/graph.h"

namespace nestgrad {

// Why no derivative passes from this input through this node; empty where one passes. (Scans and what reads
// them have derivatives that no row knows: ask of OpKind::value.)
std::string_view why_no_derivative(const Node& node, std::size_t input, const Node& source);

inline bool passes(const Node& node, std::size_t input, const Node& source) {
  return why_no_derivative(node, input, source).empty();
}

}  // namespace nestgrad
