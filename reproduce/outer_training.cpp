#include "reproduce/outer_training.h"

#include <fmt/format.h>

#include <cmath>

#include "autograd/grad.h"
#include "ops/numerics/functions.h"

namespace nestgrad::reproduce {

namespace {

constexpr DType kType = DType::f32;
constexpr std::size_t kNumbers = 3;  // inputs behind the batch: rate and two corrections
constexpr std::size_t kResults = 2;  // outputs before the parameters: loss, gradient norm

bool same(const std::vector<ParamSpec>& a, const std::vector<ParamSpec>& b) {
  return std::ranges::equal(
      a, b, [](const ParamSpec& x, const ParamSpec& y) { return x.name == y.name && x.shape == y.shape; });
}

}  // namespace

std::size_t OuterTraining::add(const std::vector<Spec>& batch, const ObjectiveFn& objective) {
  const std::size_t given = batch.size();
  std::vector<Spec> first = batch;
  first.resize(given + kNumbers, Spec{kType, {}});
  const TracedModel traced = trace_model(kType, first, [&](ParamTable& table, const std::vector<Tensor>& in) {
    Objective o = objective(table, {in.begin(), in.begin() + static_cast<std::ptrdiff_t>(given)});
    const std::vector<Tensor> params = table.tensors();
    if (o.gradients.empty()) {
      const GradSeed seed = seed_of_ones(o.loss);
      o.gradients = pull_back(std::span(&seed, 1), params);
    }
    std::vector<Tensor> m, v;
    for (const ParamSpec& p : table.specs())
      m.push_back(o.loss.graph().input(Spec{kType, p.shape}, "first moment of " + p.name));
    for (const ParamSpec& p : table.specs())
      v.push_back(o.loss.graph().input(Spec{kType, p.shape}, "second moment of " + p.name));
    const AdamWResult r = adamw(table.specs(), params, o.gradients, m, v,
                                {in[given], in[given + 1], in[given + 2], o.loss}, options_);
    std::vector<Tensor> out{o.loss, r.grad_norm};
    for (const std::vector<Tensor>& part : {r.params, r.m, r.v})
      out.insert(out.end(), part.begin(), part.end());
    return out;
  });
  if (programs_.empty()) {
    specs_ = traced.params;
    const StateDict start = initial_parameters(specs_, kType, seed_);
    for (const ParamSpec& p : specs_) state_.push_back(start.at(p.name).clone());
    for (int moment = 0; moment < 2; ++moment)
      for (const ParamSpec& p : specs_) state_.push_back(Array::zeros(kType, p.shape));
  } else if (!same(specs_, traced.params)) {
    throw ConfigError("[reproduce] two kinds of batches of one training ask for different parameters");
  }
  programs_.push_back(
      {given, traced.function.plan({.device = Device::cpu(),
                                    .donate = adamw_in_place(specs_.size(), kResults, given + kNumbers)})});
  return programs_.size() - 1;
}

double OuterTraining::step(std::size_t kind, const std::vector<Array>& batch, double rate) {
  Program& program = programs_.at(kind);
  if (batch.size() != program.given)
    throw ConfigError(fmt::format("[reproduce] a batch of {} arrays was given to a program that reads {}",
                                  batch.size(), program.given));
  const auto t = static_cast<double>(steps_ + 1);
  std::vector<Array> inputs = batch, outputs;
  for (const double x : {rate, 1 / (1 - m::pow(options_.beta1, t)), 1 / (1 - m::pow(options_.beta2, t))})
    inputs.push_back(Array::scalar(x, kType));
  inputs.insert(inputs.end(), state_.begin(), state_.end());
  for (std::size_t i = 0; i < kResults; ++i) outputs.emplace_back(Spec{kType, {}});
  outputs.insert(outputs.end(), state_.begin(), state_.end());
  program.plan.run(inputs, outputs);
  const double loss = outputs[0].item(), norm = outputs[1].item();
  if (!std::isfinite(loss) || !std::isfinite(norm))
    throw ValueError(fmt::format("step {}: the {} is not finite (loss {}, gradient norm {})", steps_ + 1,
                                 std::isfinite(loss) ? "gradient" : "loss", loss, norm));
  ++steps_;
  return loss;
}

StateDict OuterTraining::parameters() const {
  StateDict out;
  for (std::size_t i = 0; i < specs_.size(); ++i) out.emplace(specs_[i].name, state_[i].clone());
  return out;
}

}  // namespace nestgrad::reproduce
