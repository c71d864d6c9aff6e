#include "ttt/forms/form.h"

#include <fmt/format.h>

#include "ttt/derived_learner.h"
#include "ttt/forms/law.h"

namespace nestgrad::ttt {

FormError not_reached(std::string_view stage, const std::string& weight) {
  return FormError(fmt::format(
      "[{0}] fast weight '{1}' does not reach the inner loss, so it would never learn; let predict() and loss() "
      "read it from the weights that they are given (w[\"{1}\"], not a tensor of the same number kept elsewhere), "
      "or remove it",
      stage, weight));
}

Form::Form(const DerivedLearner& learner, Weights first)
    : derived_(learner),
      learner_(learner.learner()),
      policy_(learner.policy()),
      optimizer_(learner.optimizer()),
      first_(std::move(first)) {}

Laws Form::prepare(const State&, const Gates&, const Shape&, std::int64_t, Tensor) const { return {}; }

Block Form::with_own_gates(const State& state, Block block, Tensor place) const {
  if (derived_.own_gates().empty()) return block;
  const DType dtype = block.k.dtype();
  const std::int64_t tokens = block.tokens();
  if (!place.defined()) place = iota(dtype, {tokens, 1}, 0);
  else if (place.rank() == 1) place = reshape(place, {1, 1});
  const Weights at = gradient_point(state, block).spread(tokens);
  for (const auto& [name, rows] : derived_.made_gates(at, block.k, block.v, place)) block.gates[name] = rows;
  return block;
}

std::vector<Tensor> Form::points(const State& state, const Block& block) const {
  Gates columns;  // those of the step that the gradient is for, if there is only one
  if (policy_.update == Policy::Update::per_chunk) columns = chunk_gates(block.gates);
  else if (block.tokens() == 1) columns = columns_of(block.gates);
  else if (optimizer_.moves_gradient_point_by_token())
    return state.weights.values();  // one a token, and no gradient depends on it
  std::vector<Tensor> out;
  for (std::size_t i = 0; i < state.weights.size(); ++i)
    out.push_back(optimizer_.gradient_point(state.of(i), columns, state.weights.at(i)));
  return out;
}

Weights Form::gradient_point(const State& state, const Block& block) const {
  std::vector<Tensor> at;
  const std::vector<Tensor> points = this->points(state, block);
  for (std::size_t i = 0; i < points.size(); ++i) {
    Tensor w = points[i];
    if (policy_.meta == Policy::Meta::first_order) w = stop_gradient(w);
    if (!block.offset.empty()) w = w + block.offset[i];
    at.push_back(w);
  }
  return state.weights.with(at);
}

}  // namespace nestgrad::ttt
