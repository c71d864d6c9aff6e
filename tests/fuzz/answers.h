// The numbers of an inner loop that is run in some way, and their comparison.
#pragma once

#include "tests/fuzz/random_loop_case.h"

namespace nestgrad::fuzz {

// Values that a program makes, by name; `order`: of the derivative that each is.
struct Named {
  std::vector<std::string> names;
  std::vector<Tensor> values;
  std::vector<int> order;
  void add(const std::string& name, Tensor value, int of_order = 0) {
    names.push_back(name), values.push_back(value), order.push_back(of_order);
  }
  void add(const ttt::State& state);
  // Derivatives of a scalar of all values with respect to
  // the inputs, then those of |gradient|^2, up to `highest`.
  void add_derivatives(const std::vector<Tensor>& inputs, int highest);
};

struct Answers {
  std::vector<std::string> names;
  std::vector<Array> numbers;
  std::vector<int> order;
  // Numbers so large, or none at all, that nothing can be compared: the learner diverges.
  bool explode() const;
};

Answers answers_of(const LoopCase& loop, const std::function<Named(const TracedCase&)>& fn);

using Run = std::function<ttt::InnerLoopResult(const TracedCase&)>;
// Output, last state and losses, where there are any; then derivatives.
Answers answers_of(const LoopCase& loop, const Run& run, int highest_order);

ttt::InnerLoopOptions options_of(const LoopCase& loop, ttt::FormChoice form, bool losses = false);
Run in_form(ttt::FormChoice form, bool losses = false);

// Finding, unless all numbers are the same up to 1e-9 of the largest of their array, or of a thousandth of
// the largest of their order: what is smaller has been rounded away on the way.
void require_same(const std::string& what, const Answers& found, const Answers& wanted);

}  // namespace nestgrad::fuzz
