#include "autograd/jacobian.h"

#include <fmt/format.h>

#include <string_view>

#include "autograd/reverse.h"
#include "autograd/scan.h"
#include "autograd/why.h"
#include "ops/ops.h"

namespace nestgrad {

namespace {

Shape joined(Shape a, const Shape& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Is y made of x, in whichever way? In the body of a loop what is made of an x outside may be outside too: there
// the derivative itself finds out.
bool may_meet(Tensor y, Tensor x) { return &y.graph() != &x.graph() || why_disconnected(y, x).meets; }

Tensor jacobian_of(std::string_view rule, Tensor y, Tensor x, GradOptions options, Loc loc) {
  check_defined(rule, "y", std::span(&y, 1), loc);
  check_defined(rule, "x", std::span(&x, 1), loc);
  const GraphScope open(context().emit.graph ? *context().emit.graph : y.graph());  // where the identity goes
  const Scope scope("jacobian", loc);
  const std::int64_t elements = y.spec().size();
  const Shape shape = joined(y.shape(), x.shape());
  if (elements == 0) return zeros(x.dtype(), shape);
  if (elements == 1)
    return reshape(vjp_for(rule, {y}, {seed_of_ones(y, loc).cotangent}, {x}, options, loc)[0], shape);
  const ScanResult rows = scan(
      [&](const std::vector<Tensor>&, const std::vector<Tensor>& cotangent) -> StepOutput {
        return {{}, {vjp_for(rule, {y}, cotangent, {x}, options, loc)[0]}};
      },
      {}, {reshape(eye(y.dtype(), elements), joined({elements}, y.shape()))}, {}, loc);
  return reshape(rows.ys[0], shape);
}

}  // namespace

Tensor jacobian(Tensor y, Tensor x, GradOptions options, Loc loc) {
  return jacobian_of("jacobian", y, x, options, loc);
}

Tensor hessian(Tensor y, Tensor x, GradOptions options, Loc loc) {
  const Tensor slope = grad_for("hessian", y, {x}, options, loc)[0];
  if (!options.allow_zero && !may_meet(slope, x))
    throw GradError(fmt::format(
        "[hessian] y = {} is linear in x = {}, so there is no second derivative. If zero is what you "
        "mean, ask for it with allow_zero (at {})",
        describe(y), describe(x), describe(loc)));
  return jacobian_of("hessian", slope, x, options, loc);
}

}  // namespace nestgrad
