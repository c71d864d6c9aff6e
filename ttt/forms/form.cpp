#include "ttt/forms/form.h"

#include <fmt/format.h>

#include <array>

namespace nestgrad::ttt {

namespace {

constexpr std::array<std::pair<FormChoice, std::string_view>, 6> kNames{
    {{FormChoice::automatic, "automatic"},
     {FormChoice::primal, "primal"},
     {FormChoice::dual, "dual"},
     {FormChoice::parallel, "parallel"},
     {FormChoice::wy, "wy"},
     {FormChoice::chunk_parallel, "chunk-parallel"}}};

}  // namespace

std::string_view name(FormChoice form) {
  for (const auto& [choice, name] : kNames)
    if (choice == form) return name;
  return "?";
}

FormChoice form_named(std::string_view wanted) {
  std::vector<std::string_view> known;
  for (const auto& [choice, name] : kNames) {
    if (name == wanted) return choice;
    known.push_back(name);
  }
  throw ConfigError(
      fmt::format("[form] there is no form '{}'; there are {}", wanted, fmt::join(known, ", ")));
}

Gates columns_of(const Gates& rows) {
  Gates out;
  for (const auto& [name, value] : rows) out[name] = transpose(value);
  return out;
}

Gates chunk_gates(const Gates& rows) {
  Gates out;
  for (const auto& [name, value] : rows) out[name] = transpose(mean(value, {-2}, kKeep));
  return out;
}

State State::start(const Learner& learner, const Weights& weights) {
  if (weights.size() == 0)
    throw ConfigError(
        "[inner_loop] the learner has no weights, so nothing learns; Learner::init() gives them");
  const InnerOptimizer optimizer = learner.optimizer();
  State out{weights, {}};
  for (std::size_t i = 0; i < weights.size(); ++i) out.slots.push_back(optimizer.slots(weights.at(i)));
  return out;
}

std::vector<Tensor> State::of(std::size_t weight) const {
  std::vector<Tensor> out{weights.at(weight).value};
  for (const FastWeight& slot : slots[weight]) out.push_back(slot.value);
  return out;
}

std::vector<Tensor> State::flat() const {
  std::vector<Tensor> out;
  for (std::size_t i = 0; i < weights.size(); ++i)
    for (const Tensor& t : of(i)) out.push_back(t);
  return out;
}

State State::with(std::span<const Tensor> flat) const {
  State out = *this;
  std::vector<Tensor> values;
  std::size_t at = 0;
  for (std::vector<FastWeight>& own : out.slots) {
    values.push_back(flat[at++]);
    for (FastWeight& slot : own) slot.value = flat[at++];
  }
  out.weights = weights.with(values);
  return out;
}

std::vector<std::string> State::names() const {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    out.push_back(weights.at(i).name);
    for (const FastWeight& slot : slots[i]) out.push_back(weights.at(i).name + "." + slot.name);
  }
  return out;
}

std::vector<Tensor> Form::points(const State& state, const Block& block) const {
  Gates columns;  // those of the step that the gradient is for, if there is only one
  if (policy_.update == Policy::Update::per_chunk) columns = chunk_gates(block.gates);
  else if (block.tokens() == 1) columns = columns_of(block.gates);
  else if (optimizer_.moves_gradient_point())
    return state.weights.values();  // one a token, and no gradient depends on it
  std::vector<Tensor> out;
  for (std::size_t i = 0; i < state.weights.size(); ++i)
    out.push_back(optimizer_.gradient_point(state.of(i), columns));
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

Tensor rate_of(const Policy& policy, const Gates& gates, const FastWeight& weight) {
  Tensor out;
  for (const std::string& name : {std::string("rate"), "rate." + weight.name})
    if (const auto at = gates.find(name); at != gates.end())
      out = out.defined() ? out * at->second : at->second;
  if (!policy.ascent) return out;
  return out.defined() ? -out : constant(-1.0, weight.value.dtype());
}

}  // namespace nestgrad::ttt
