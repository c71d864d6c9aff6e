// OpenProgram: the loop that is inspected, in a program of its own, by which the views compute their numbers.
//
//   const Array output = OpenProgram(inspected, {}, [](OpenLoop& loop, const std::vector<Tensor>&) {
//     return std::vector<Tensor>{loop.run(loop.options).output};
//   })()[0];
#pragma once

#include "look/numbers.h"

namespace nestgrad::look {

using namespace ttt;  // inner loops are what is looked at

struct OpenLoop {
  std::unique_ptr<Learner> learner;
  InnerLoopOptions options;  // the loop's policy, in a form that takes chunks one after the other
  Weights start;             // [batch, heads, ..], each a variable of its own
  Weights learning;          // those that learn
  Views views;
  Tensor cotangent;
  std::vector<std::string>
      names;  // of what the outer model trains: the learner's parameters, q, k, v, gates, position rates
  std::vector<Tensor> trained;

  InnerLoopResult run(
      const InnerLoopOptions& with) const;  // ShapeError unless the cotangent is shaped as the output
};

class OpenProgram {
 public:
  using Fn = std::function<std::vector<Tensor>(OpenLoop& loop, const std::vector<Tensor>& extra)>;
  // fn makes the outputs; `extra` are inputs that each run is given.
  OpenProgram(const InspectedLoop& inspected, const std::vector<Spec>& extra, const Fn& fn,
              DType dtype = DType::f64);
  std::vector<Array> operator()(std::vector<Array> extra = {}) const;
  const Function& function() const { return function_; }
  const std::vector<Array>& fixed() const { return fixed_; }  // inputs after the extra ones

 private:
  Function function_;
  std::vector<Array> fixed_;
};

// The specimen's numbers of the table's parameters, in its order. ConfigError or ShapeError where it has none that fit.
std::vector<Array> values_of(const ParamTable& table, const InspectedLoop& inspected, DType dtype);

// Numbers of several arrays as one vector.
double dot(const std::vector<Array>& a, const std::vector<Array>& b);
double norm(const std::vector<Array>& a);
double cosine(const std::vector<Array>& a, const std::vector<Array>& b);  // NaN where one is zero
// |a - b| / |b|, where |b| is no less than `least`: what is nothing but rounding is not compared with itself.
// Where both are zero, zero.
double relative_distance(const std::vector<Array>& a, const std::vector<Array>& b, double least = 0);
std::vector<Array> plus(const std::vector<Array>& a, const std::vector<Array>& b);

// [.., time] or [.., time, 1] -> [time], summed over what stands before.
std::vector<double> sum_over_members(const Array& rows, std::int64_t time);

// One at `index`, zeros elsewhere.
Array one_at(std::int64_t index, Shape shape);

}  // namespace nestgrad::look
