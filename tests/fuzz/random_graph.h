// Random programs, made of draws: every op of the table and every function of ops/ops.h on shapes that fit,
// loops in loops, rules of their own, recomputed regions, gradients in all of them. The same draws give the
// same program, on whatever graph is open.
//
//   RandomGraph made(draws);
//   const std::vector<Spec> specs = made.inputs();
//   const Function f = trace([&](const Tensors& in) { return made.outputs(in); }, specs);
//
// What is made stays small: values of at most 96 numbers (in some programs 1000), of at most 5 axes, and (but
// for derivatives) not far from 1. Each op takes a value that was made before, the latest for a draw of 0.
#pragma once

#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "nestgrad.h"
#include "tests/fuzz/draws.h"

namespace nestgrad::fuzz {

// How large a value's numbers may be, where that is not known.
inline constexpr double kUnknown = std::numeric_limits<double>::infinity();

class RandomGraph {
 public:
  explicit RandomGraph(Draws& draws) : draws_(&draws) {}

  std::vector<Spec> inputs();              // first
  Tensors outputs(const Tensors& inputs);  // then
  // May derivatives be held against differences of values? Not behind stop_gradient, f32, or a rule that is
  // not the derivative.
  bool is_exact() const { return exact_; }

  // How often each kind of step was made in any program of this process, by its name.
  static const std::map<std::string, long>& made();

 private:
  // A tensor and a bound of its elements' size.
  struct Value {
    Tensor t;
    double most = 1;
  };
  using Values = std::vector<Value>;
  struct Region {
    Values values;
    bool closed = false;  // values of the regions around it may not be used
  };
  // A kind of step: it makes a value and adds it to the innermost region.
  struct Kind {
    const char* name;
    int weight;
    void (RandomGraph::*make)();
  };
  static const std::vector<Kind>& kinds();

  // ---- draws ----
  int below(int n) { return draws_->below(n); }
  bool maybe(int n) { return draws_->one_in(n); }
  std::int64_t extent(int most);
  int axis_of(Tensor t) { return below(t.rank()) - (maybe(4) ? t.rank() : 0); }
  std::vector<int> some_axes(Tensor t);
  Shape some_shape(int most_axes, int most_extent);

  // ---- values that there are, or that are made of them ----
  Values visible(const std::function<bool(Tensor)>& fits) const;
  Value one_of(const Values& values) { return values[values.size() - 1 - at(below(count(values)))]; }
  Value any() {
    return one_of(visible([](Tensor) { return true; }));
  }
  Value any_float();
  Value any_of(DType dtype);
  Value any_with_axes(int axes, bool filled);  // filled: and no axis of extent 0
  Value as(Value v, DType dtype);
  Value fit(Value v, const Shape& shape);  // of this shape
  Value fitting(DType dtype, const Shape& shape) { return fit(any_of(dtype), shape); }
  Value broadcasting(DType dtype, const Shape& shape);  // of a shape that broadcasts with this one
  Value index_below(std::int64_t n);
  Tensors variables();  // what derivatives can be taken in

  // ---- steps ----
  void some_steps(int most);
  void add(Tensor t, double most);
  Value within(Value v, double most);

  void unary();
  void binary();
  void chosen();
  void reduced();
  void summed_to();
  void reshaped();
  void permuted();
  void spread();
  void cut();
  void padded();
  void joined();
  void gathered();
  void scattered();
  void added_at();
  void counted();
  void one_hots();
  void lower_triangle();
  void cumulated();
  void converted();
  void number();
  void named();
  void stopped();
  void product();
  void system();
  void softmaxes();
  void classified();
  void normalised();
  void norms();
  void turned();
  void attended();
  void convolved();
  void convolved_twice();
  void shared();
  void loop();
  void learner();
  void heads();
  void relayed();
  void ruled();
  void recomputed();
  void gradient();
  void products_with_derivatives();

  struct Loop;
  void draw_operands(Loop& loop);
  StepOutput step_of(Loop& loop, const Tensors& carries, const Tensors& xs);
  Tensor step_of_heads(const Tensors& values, std::int64_t dim);
  Tensor closed_body(const Tensors& in, const std::vector<double>& most);

  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  static int count(const Values& values) { return static_cast<int>(values.size()); }

  Draws* draws_;
  DType dtype_ = DType::f64;
  bool wide_ = false;  // has it axes longer than a register?
  std::vector<Region> regions_;
  int steps_left_ = 24, gradients_left_ = 3, depth_ = 0;
  bool exact_ = true;
};

// Can an array of shape `a` be spread to `b`?
bool spreads_to(const Shape& a, const Shape& b);
// Bodies of scans and rules included.
void for_each_node(const std::deque<GraphNode>& nodes, const std::function<void(const GraphNode&)>& visit);

}  // namespace nestgrad::fuzz
