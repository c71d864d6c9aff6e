// Programs in which something becomes NaN or infinite, and where.
#pragma once

#include <cmath>
#include <limits>

#include "engine/io/safetensors.h"
#include "engine/look/nonfinite.h"
#include "engine/run/interpreter.h"
#include "ops/attrs.h"
#include "tests/autograd/deriving.h"
#include "tests/engine/io_testing.h"
#include "tests/special_numbers.h"

namespace nestgrad::testing {

using Steps = std::vector<std::int64_t>;

inline NonFinite found_in(const Function& f, const Arrays& at) {
  const auto found = first_nonfinite(f, at);
  REQUIRE(found.has_value());
  return *found;
}

// A weight that learns to be x. The inner loss is |w - x| as a root of a square, which has no derivative
// where they meet; the weight stays where it is until then.
inline Tensor learn_distance(const Tensors& in, const Loop& loop) {
  return sum(loop(
                 [](const Tensors& w, const Tensors& x) -> StepOutput {
                   const Scope scope("inner loss");
                   const Tensor loss = sum(sqrt(square(w[0] - x[0])));
                   return {{w[0] - 0.0 * grad(loss, {w[0]})[0]}, {}};
                 },
                 {in[0]}, {in[1]}, {})
                 .carries[0]);
}

inline Function distance_learner(const Loop& loop = as_scan) {
  return trace([&](const Tensors& in) -> Tensors { return {learn_distance(in, loop)}; },
               {f64({1}), f64({4, 1})});
}

inline Arrays meeting_at(std::size_t step) {
  std::vector<double> x{2, 3, 4, 5};
  x[step] = 1;
  return {Array::of({1}, {1}), Array::of(x, {4, 1})};
}

// sum_t sqrt(x_t): finite at zero, its derivative is not.
inline Function roots(bool derivative) {
  return trace(
      [=](Tensor x) {
        const Tensor y = scan(
                             [](const Tensors& c, const Tensors& now) -> StepOutput {
                               return {{c[0] + sqrt(now[0])}, {}};
                             },
                             {constant(0.0, DType::f64)}, {x})
                             .carries[0];
        return derivative ? grad(y, x) : y;
      },
      f64({4}));
}

inline Function reciprocals() {
  return trace(
      [](Tensor x) {
        return scan(
                   [](const Tensors& c, const Tensors& row) -> StepOutput {
                     return {{scan(
                                  [](const Tensors& d, const Tensors& now) -> StepOutput {
                                    return {{d[0] + reciprocal(now[0])}, {}};
                                  },
                                  {c[0]}, {row[0]})
                                  .carries[0]},
                             {}};
                   },
                   {constant(0.0, DType::f64)}, {x})
            .carries[0];
      },
      f64({2, 3}));
}

inline Tensor halved_quotient(const Tensors& in) {
  return custom_vjp([](const Tensors& x) { return 0.5 * (x[0] / x[1]); },
                    [](const Tensors& x, Tensor, Tensor ct) -> Tensors {
                      return {ct / x[1], -(ct * x[0])};
                    },
                    in);
}

inline PlanOptions plain_plan() {
  return {.simplify = false, .reuse = false, .fuse = false, .rematerialize = false, .slice = false};
}

}  // namespace nestgrad::testing
