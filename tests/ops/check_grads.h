// Checks of derivatives against numbers, for one op or a whole function. Each returns what is wrong, in
// words, instead of failing a test, so that a negative control can show that it sees a wrong rule.
#pragma once

#include <string>
#include <vector>

#include "autograd/grad.h"
#include "engine/run/function.h"

namespace nestgrad::testing {

using Failures = std::vector<std::string>;

void append(Failures& to, Failures more);
std::string join(const Failures& failures);  // one a line

// What is differentiated: outputs of fn at `inputs` (f64), with respect to the inputs marked in `active`.
struct Subject {
  std::string what;  // begins every failure
  TraceFn fn;
  std::vector<Array> inputs;
  std::vector<char> active;  // empty: every floating input
  double tolerance = 1;      // factor on every tolerance
  int orders = 3;
};

// Reverse mode to order n: along random directions, d/dx_i of
// the derivative of order n-1 against its central difference.
Failures check_grads(const Subject& s);
// What is left of a Taylor polynomial of order n shrinks as h^(n+1).
Failures check_taylor(const Subject& s);
// <J u, v> = <u, J' v>, and J u against central differences.
Failures check_products(const Subject& s);
// The gradient in f32 is the one in f64 to the precision of f32.
Failures check_f32_grads(const Subject& s);
// All of these.
Failures check_every_way(const Subject& s);

// Uniform in [low, high], from (seed, stream).
Array uniform(const Spec& spec, std::uint64_t seed, double low = -1, double high = 1);

}  // namespace nestgrad::testing
