// Whole Jacobians and Hessians, for what is small enough to look at. Where a product with one is enough, take vjp, jvp or hvp
// (autograd/grad.h): they cost one gradient.
//
//   Tensor j = jacobian(y, x);    // y [2, 3], x [4] -> [2, 3, 4]
//   Tensor h = hessian(loss, w);  // w [4, 5] -> [4, 5, 4, 5]
#pragma once

#include "autograd/grad.h"

namespace nestgrad {

// Of every element of y the derivative by every element of x: [y.., x..]. A scan with a step for each element of y: the time of
// so many gradients, the memory of one, of the result and of the identity [y.., y..]. It can be differentiated like any value.
// GradError as vjp, where y does not depend on x.
Tensor jacobian(Tensor y, Tensor x, GradOptions options = {}, Loc loc = Loc::current());

// The second derivatives of a y of one element: [x.., x..], the Jacobian of its gradient. GradError where y does not depend on x, and
// where its gradient does not (of a y that is linear in x): allow_zero gives zeros.
Tensor hessian(Tensor y, Tensor x, GradOptions options = {}, Loc loc = Loc::current());

}  // namespace nestgrad
