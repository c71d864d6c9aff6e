// The formulas of ops/elementwise.def as types, for the kernels of the CPU and of CUDA:
// formula::mul::of(2.0f, 3.0f) is 6; formula::mul::integers: it holds for integers too.
#pragma once

#include "ops/numerics/functions.h"

namespace nestgrad::inline NESTGRAD_ISA {

namespace formula {

constexpr bool FLOAT = false, ANY = true;

#define FORMULA(NAME, OPERANDS, PARAMETERS, EXPRESSION, KIND) \
  struct NAME {                                               \
    static constexpr int operands = OPERANDS;                 \
    static constexpr bool integers = KIND;                    \
    template <class X>                                        \
    static NESTGRAD_SHARED_FN X of PARAMETERS {               \
      return EXPRESSION;                                      \
    }                                                         \
  };
#define UNARY(NAME, DOC, KERNEL, VJP, LOW, HIGH, KIND, ...) FORMULA(NAME, 1, (X x), KERNEL, KIND)
#define UNARY_STEP(NAME, DOC, KERNEL, LOW, HIGH, KIND) FORMULA(NAME, 1, (X x), KERNEL, KIND)
#define BINARY(NAME, DOC, KERNEL, VJP_A, VJP_B, LOW_A, HIGH_A, LOW_B, HIGH_B, KIND, ...) \
  FORMULA(NAME, 2, (X a, X b), KERNEL, KIND)
#define BINARY_STEP(NAME, DOC, KERNEL, LOW_A, HIGH_A, LOW_B, HIGH_B, KIND) \
  FORMULA(NAME, 2, (X a, X b), KERNEL, KIND)
#define TERNARY(NAME, DOC, KERNEL, KIND) FORMULA(NAME, 3, (X a, X b, X c), KERNEL, KIND)
#include "ops/elementwise.def"
#undef FORMULA

}  // namespace formula

}  // namespace nestgrad::inline NESTGRAD_ISA
