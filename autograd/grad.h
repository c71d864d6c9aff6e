// Derivatives as graphs. grad walks the nodes between y and x and calls each op's rule, which appends
// ordinary ops; so a gradient can be differentiated again, to any order, by the same walk.
//
//   Tensor dx = grad(y, x);
//   Tensor ddx = grad(sum(dx), x);
//
// Equal expressions are one node: to differentiate with
// respect to one use of a value, name that use with probe().
//
// No silent zero: if y does not depend on x, GradError says where the path was cut.
#pragma once

#include <concepts>

#include "engine/core/graph.h"

namespace nestgrad {

struct GradOptions {
  bool allow_zero = false;  // give zeros for an x that y does not depend on, instead of GradError
};

// dy/dx for each x, of x's shape. y has one element. A
// dependence of one x on another counts (total derivative).
std::vector<Tensor> grad(Tensor y, const std::vector<Tensor>& x, GradOptions options = {},
                         Loc loc = Loc::current());
// The same of one x, as one tensor.
Tensor grad(Tensor y, std::same_as<Tensor> auto x, GradOptions options = {}, Loc loc = Loc::current()) {
  return grad(y, std::vector<Tensor>{x}, options, loc)[0];
}

// Vector-Jacobian products: sum over outputs of cotangent' dy/dx, for each x.
std::vector<Tensor> vjp(const std::vector<Tensor>& y, const std::vector<Tensor>& cotangents,
                        const std::vector<Tensor>& x, GradOptions options = {}, Loc loc = Loc::current());

// Jacobian-vector products: for each y, sum over x of dy/dx tangent. The derivative of the VJP with respect
// to its cotangent; what only the cotangent's value needs is dead code afterwards.
std::vector<Tensor> jvp(const std::vector<Tensor>& y, const std::vector<Tensor>& x,
                        const std::vector<Tensor>& tangents, GradOptions options = {},
                        Loc loc = Loc::current());

// Hessian-vector product d/dx <dy/dx, v> of a one-element y.
std::vector<Tensor> hvp(Tensor y, const std::vector<Tensor>& x, const std::vector<Tensor>& v,
                        GradOptions options = {}, Loc loc = Loc::current());

// ---- the walk itself, for the derived forms ----

struct GradSeed {
  Tensor value, cotangent;
};
GradSeed seed_of_ones(Tensor value, Loc loc = Loc::current());  // the gradient of the sum of value

// Cotangent of each wrt, undefined where no path leads to
// it. `initial[i]`, if defined, is what wrt i starts from.
std::vector<Tensor> pull_back(std::span<const GradSeed> seeds, std::span<const Tensor> wrt,
                              std::span<const Tensor> initial = {});

}  // namespace nestgrad
