// What messages say of a node of a graph.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "engine/core/context.h"
#include "engine/core/graph.h"

namespace nestgrad {

std::string describe(const std::deque<GraphNode>& nodes, NodeId id);  // as describe(Tensor)
// What made a node, and where: matmul in layers.0 (file.cpp:31), input 'w' (file.cpp:9).
std::string origin(const std::deque<GraphNode>& nodes, NodeId id);
// The op as messages name it: within a function made of several, layer_norm: mul.
std::string called(std::string_view op);
// The line of the call that the user wrote: of functions inside of each other that of the outermost one, else `loc`.
inline Loc users_line(Loc loc) { return context().emit.loc.value_or(loc); }
std::string at_line(Loc loc);  // " (at file.cpp:31)"; empty where the line is not known
// What a function made of several ops throws for a wrong call: it names the function that the user called, and where.
//
//   throw call_error<ShapeError>("transpose", x.loc, "needs two axes, x is {}", describe(x.tensor()));
template <class Error, class... Args>
Error call_error(std::string_view function, Loc loc, fmt::format_string<Args...> why, Args&&... args) {
  return Error(fmt::format("[{}] {}{}", called(function), fmt::format(why, std::forward<Args>(args)...),
                           at_line(users_line(loc))));
}
// ConfigError, with the line, for a function that was never given.
template <class F>
void require_function(const char* who, const char* what, const F& fn, Loc loc) {
  if (!fn) throw call_error<ConfigError>(who, loc, "{} is an empty function; give one", what);
}
// A kernel's error with the line of its node and where its operands came from. more: what follows the line.
ValueError value_error(const ValueError& e, const std::deque<GraphNode>& nodes, NodeId id,
                       const std::string& more = "");

}  // namespace nestgrad
