#include "engine/core/op.h"

#include <fmt/format.h>

#include "engine/core/graph.h"
#include "engine/core/node_text.h"

namespace nestgrad {

std::string OpCall::operands() const {
  std::string text;
  for (std::size_t i = 0; i < in.size(); ++i)
    text += fmt::format("{}{} is {}{}", i ? ", " : "",
                        i < 26 ? std::string(1, static_cast<char>('a' + i)) : fmt::format("operand {}", i),
                        to_string(in[i]), i < ids.size() ? " from " + origin(*nodes, ids[i]) : "");
  return text;
}

namespace {

std::string of_operands(const OpCall& call) {
  return call.in.empty() ? "" : fmt::format(": {}", call.operands());
}

}  // namespace

void OpCall::shape_error(const std::string& message) const {
  throw ShapeError(fmt::format("[{}] {}{}", called(op.name), message, of_operands(*this)));
}

void OpCall::dtype_error(const std::string& message) const {
  throw DTypeError(fmt::format("[{}] {}: {}", called(op.name), message, operands()));
}
void OpCall::check_axis(std::int64_t axis, const Shape& shape) const {
  if (axis < 0 || axis >= std::ssize(shape))
    shape_error(fmt::format("axis {} does not exist{}", axis,
                            in.empty() ? fmt::format(", the shape is {}", to_string(shape)) : ""));
}

Spec infer(const OpCall& call) {
  Spec out = call.op.infer(call);
  try {
    check_spec(call.op.name, out);
  } catch (const ShapeError& e) {  // its name, [op], is completed only here: this runs for every node
    const std::string_view after_name = std::string_view(e.what()).substr(call.op.name.size() + 2);
    throw ShapeError(fmt::format("[{}]{}{}", called(call.op.name), after_name, of_operands(call)));
  }
  return out;
}

Spec infer(const Op& op, std::span<const Spec> in, const Attrs& attrs) { return infer({op, in, attrs, {}}); }

OpCost elementwise_cost(const OpCall& call) {
  OpCost cost{static_cast<double>(call.out.size()), static_cast<double>(call.out.bytes())};
  for (const Spec& in : call.in) cost.bytes += static_cast<double>(in.bytes());
  return cost;
}

}  // namespace nestgrad
