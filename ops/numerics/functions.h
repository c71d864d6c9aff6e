// The functions that formulas call, in namespace m: generic over X, which is float, double or a Pack of
// either. One source for all processors, CUDA's too, and the same bits on all of them: made of operations
// that IEEE 754 defines, in an order that no compiler may change (neither contraction nor reassociation;
// fma() where a product is to be fused). The error is at most 2 units in the last place, for results that are
// denormal too; NaN in is NaN out. f32 is computed in f32.
//
//   exp expm1 log log1p tanh sin cos sqrt rsqrt abs sigmoid silu gelu gelu_tanh softplus erf pow
#pragma once

#include "ops/numerics/error_function.h"
#include "ops/numerics/exponential.h"
#include "ops/numerics/logarithm.h"
#include "ops/numerics/power.h"
#include "ops/numerics/trigonometric.h"

namespace nestgrad::inline NESTGRAD_ISA {

namespace m {

template <class X>
NESTGRAD_SHARED_FN X sqrt(X x) {
  return square_root(x);
}
template <class X>
NESTGRAD_SHARED_FN X rsqrt(X x) {
  return X(1) / square_root(x);
}
// Of integers too; that of the smallest one is itself.
NESTGRAD_SHARED_FN std::int32_t abs(std::int32_t x) {
  return x < 0 ? static_cast<std::int32_t>(0u - static_cast<std::uint32_t>(x)) : x;
}

}  // namespace m

}  // namespace nestgrad::inline NESTGRAD_ISA
