// The full meta-gradient taken apart: what the views by step and by channel share.
#pragma once

#include "look/open_loop.h"

namespace nestgrad::look {

constexpr double kExact = 1e-12;  // tolerance of sums of all parts

// The gradient of the starting weights and of the tokens' sizes, and the two parts that it has.
class GradientParts {
 public:
  explicit GradientParts(const InspectedLoop& inspected);

  struct Values {
    std::vector<Array> start;  // of the weights that learn
    Array sizes;               // [batch, heads, time, 1]
  };
  struct Result {
    Values full, first_order, gradient;
    double loss_size = 0;  // norm of the outer loss's terms, output times cotangent: the unit of `sizes`
  };
  // Of the outer loss at the tokens that `reads` marks;
  // `gradient` is the part through the steps that `steps` marks.
  Result run(const Array& reads, const Array& steps) const;
  // Has every token a point of its own where its gradient
  // is taken (InnerOptimizer::keep before the gradient, by a gate)?
  bool point_per_token() const { return point_per_token_; }
  Array every_token() const { return Array::full(DType::f64, {1, 1, time_, 1}, 1); }
  Array every_step() const { return Array::full(DType::f64, {chunks_, 1, 1, 1, 1}, 1); }
  Array token(std::int64_t t) const { return one_at(t, {1, 1, time_, 1}); }
  Array step(std::int64_t t) const { return one_at(t, {chunks_, 1, 1, 1, 1}); }

 private:
  std::vector<Tensor> outputs(OpenLoop& loop, Tensor reads, Tensor steps, const InspectedLoop& inspected);

  std::int64_t time_, chunks_;
  std::size_t weights_ = 0;
  bool point_per_token_ = false;
  OpenProgram program_;
};

}  // namespace nestgrad::look
