// Simplification rules of elementwise ops and sums, as Op::simplify takes them: a cheaper expression, or an
// undefined tensor. The same number to rounding for every operand, the same bits where the graph's options do
// not allow to round; NaN and infinity are not hidden.
#pragma once

#include "engine/core/tensor.h"

namespace nestgrad {

Tensor times_one(Tensor t);        // x * 1; (x * a) * b and (-x) * b for numbers a, b
Tensor over_one(Tensor t);         // x / 1
Tensor plus_zero(Tensor t);        // x + 0; x + (-y); A X + .. + B X, as (A + B) X + ..
Tensor minus_zero(Tensor t);       // x - 0; x - (-y)
Tensor known_power(Tensor t);      // x^2, x^3 and x^-1
Tensor double_negation(Tensor t);  // -(-x); -(x * a); -(x - y)
// Of every elementwise op: numbers are computed, and operands are spread only as far as they have to be.
Tensor simplify_elementwise(Tensor t);
// Of a sum: factors that are the same for all terms come after it.
Tensor factor_out(Tensor t);

}  // namespace nestgrad
