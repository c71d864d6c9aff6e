// The sweep: what a row of the op table says is held against what the op
// does. Each check returns what is wrong, so that sweep_controls_test.cpp
// can show, with rows that are wrong on purpose, that it would be seen.
#pragma once

#include "tests/ops/check_grads.h"

namespace nestgrad::testing {

// One positive sample of a row, in one floating type.
struct Case {
  const Op& op;
  OpSample sample;
  DType dtype;
  std::string what;  // "matmul, sample 2"

  std::vector<Spec> specs() const;
  Spec out() const;
  // Inputs drawn from the sample's domain, the elements of one input apart from each other. widen: from [-m,
  // m] instead, m the larger bound, which leaves the piece of a piecewise formula that the domain stays in.
  std::vector<Array> draw(std::uint64_t seed, bool widen = false) const;
  TraceFn fn() const;  // emits the op
  // The result by the kernel alone (by the expansion, without a kernel).
  Array run(const std::vector<Array>& inputs) const;
  bool differentiable(std::size_t input) const;  // has the op a derivative in it?
};

std::vector<Case> positive_cases(const Op& op, DType dtype = DType::f64);

// A row whose function is in its attributes (custom_vjp): only an expansion, and nothing to say in general.
bool has_own_body(const Op& op);
// Every element of the output is a function of one element of each input.
bool is_elementwise(const Op& op);

// What the check says of the row; an error that it throws is a failure, which names the row.
Failures checked(Failures (*check)(const Op&), const Op& op);

Failures check_complete(const Op& op);     // every column that must be filled, is
Failures check_errors(const Op& op);       // negative samples are refused, with type and text
Failures check_derivatives(const Op& op);  // orders 1 to 3, Taylor rates, products, f32
Failures check_mentions(const Op& op);     // a rule mentions no value that it does not need
Failures check_linear_in(const Op& op);    // affine if declared, and not if not, but for ops that expand
Failures check_sums(const Op& op);         // what linear, sums and ShapeAttrs say is so
Failures check_attributes(const Op& op);   // attributes are read back from their numbers
Failures check_axes(const Op& op);         // one slice of an input moves one slice of the output, to the bit
Failures check_broadcasts(const Op& op);   // inputs uniform along what maps to an axis: so is the output
Failures check_may_reuse(const Op& op);    // written over its input, the output has the same bits
Failures check_placement(const Op& op);    // the output has the same bits wherever operands and it lie
Failures check_alias(const Op& op);        // the output is the bytes of the input
Failures check_expand(const Op& op);       // kernel = expansion
Failures check_f32(const Op& op);          // the f32 kernel is close to the f64 kernel
Failures check_simplify(const Op& op);     // planned with and without simplification: the same

// Equal where both are numbers; NaN only where the other is NaN. Infinite for different shapes.
double difference(const Array& a, const Array& b);

}  // namespace nestgrad::testing
