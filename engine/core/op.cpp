#include "engine/core/op.h"

#include <fmt/format.h>

namespace nestgrad {

namespace {

std::string operands(const Call& call) {
  std::string text;
  for (std::size_t i = 0; i < call.in.size(); ++i)
    text += fmt::format("{}{} is {}", i ? ", " : "", static_cast<char>('a' + i), to_string(call.in[i]));
  return text;
}

}  // namespace

void Call::shape_error(const std::string& message) const {
  throw ShapeError(fmt::format("[{}] {}: {}", op.name, message, operands(*this)));
}

void Call::dtype_error(const std::string& message) const {
  throw DTypeError(fmt::format("[{}] {}: {}", op.name, message, operands(*this)));
}

Spec infer(const Op& op, std::span<const Spec> in, const Attrs& attrs) {
  Spec out = op.infer({op, in, attrs, {}});
  check_spec(op.name, out);
  return out;
}

Cost elementwise_cost(const Call& call) {
  Cost cost{static_cast<double>(call.out.size()), static_cast<double>(call.out.bytes())};
  for (const Spec& in : call.in) cost.bytes += static_cast<double>(in.bytes());
  return cost;
}

}  // namespace nestgrad
