// Small image models for tests.
#pragma once

#include "models/traced_model.h"
#include "tests/models/model_testing.h"
#include "tests/ops/check_grads.h"

namespace nestgrad::testing {

using ImageModel = std::function<Tensors(const Params& params, const Tensors& given)>;

inline std::vector<Spec> specs_of(const Arrays& arrays) {
  std::vector<Spec> out;
  for (const Array& a : arrays) out.push_back(a.spec());
  return out;
}

inline TracedModel traced(const ImageModel& model, const Arrays& given) {
  return trace_model(DType::f64, specs_of(given),
                     [&](ParamTable& table, const Tensors& in) { return model(Params(table), in); });
}

// The model's outputs, its parameters random and away from where they start.
inline Arrays outputs(const ImageModel& model, const Arrays& given, std::uint64_t seed = 5) {
  const TracedModel m = traced(model, given);
  const StateDict params = random_parameters(m, DType::f64, seed);
  return m.function(m.bind(given, {&params}));
}
inline Arrays outputs(const ImageModel& model, const Arrays& given, const StateDict& params) {
  const TracedModel m = traced(model, given);
  return m.function(m.bind(given, {&params}));
}

// "name[shape]" of each parameter, in the order in which the model asks for them.
inline std::vector<std::string> parameter_names(const ImageModel& model, const Arrays& given) {
  std::vector<std::string> out;
  for (const ParamSpec& p : traced(model, given).params) out.push_back(p.name + to_string(p.shape));
  return out;
}

// What is wrong with the derivatives by all floating inputs and parameters, compared with central differences. but_for:
// what parameters end in by which the model does not mean to be differentiated in full.
inline std::string wrong_gradients(const std::string& what, const ImageModel& model, const Arrays& given,
                                   int orders = 1, double tolerance = 100,
                                   const std::vector<std::string>& but_for = {}) {
  const TracedModel m = traced(model, given);
  const StateDict params = random_parameters(m, DType::f64);
  Subject s{.what = what,
            .fn = [&](const Tensors& in) { return m.function(std::span<const Tensor>(in)); },
            .inputs = m.bind(given, {&params}),
            .active = {},
            .tolerance = tolerance,
            .orders = orders};
  for (const std::string& name : m.inputs)
    s.active.push_back(
        std::ranges::none_of(but_for, [&](const std::string& end) { return name.ends_with(end); }));
  return join(check_grads(s));
}

}  // namespace nestgrad::testing
