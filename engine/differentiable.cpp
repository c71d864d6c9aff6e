#include "engine/differentiable.h"

namespace nestgrad {

std::string_view why_no_derivative(const Node& n, std::size_t input, const Node& source) {
  if (!n.op->vjp) return n.op->not_differentiable.empty() ? "it has no derivative" : n.op->not_differentiable;
  if (n.op->cut)
    if (const std::string_view why = n.op->cut(static_cast<int>(input)); !why.empty()) return why;
  return is_float(n.spec.dtype) && is_float(source.spec.dtype) ? "" : "integers have no derivative";
}

}  // namespace nestgrad
