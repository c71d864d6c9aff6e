#include "look/model_numbers.h"

#include <fmt/format.h>

#include "autograd/grad.h"

namespace nestgrad::look {

namespace {

using Tensors = std::vector<Tensor>;

// Numbers of a checkpoint as f64 or f32, by name.
StateDict cast_to(const StateDict& params, DType dtype) {
  StateDict out;
  for (const auto& [name, value] : params) out.emplace(name, value.cast(dtype));
  return out;
}

}  // namespace

std::vector<Spec> specs_of(const std::vector<Array>& arrays) {
  std::vector<Spec> out;
  for (const Array& a : arrays) out.push_back(a.spec());
  return out;
}

void take_numbers(InspectedLoop& out, const std::vector<Array>& inputs, const StateDict& checkpoint,
                  const std::string& prefix,
                  const std::function<LoopInModel(const Params& params, const Tensors& in)>& see) {
  std::vector<std::string> gates;
  bool position = false;
  const TracedModel model =
      trace_model(DType::f64, specs_of(inputs), [&](ParamTable& table, const Tensors& in) {
        const LoopInModel seen = see(Params(table), in);
        Tensors r{seen.losses, grad(mean(seen.losses), seen.answers), seen.views.q, seen.views.k,
                  seen.views.v};
        for (const auto& [name, rows] : seen.views.gates) gates.push_back(name), r.push_back(rows);
        if (seen.views.position.defined()) position = true, r.push_back(seen.views.position);
        return r;
      });
  check_fits(model.params, checkpoint, "the checkpoint");
  const StateDict params = cast_to(checkpoint, DType::f64);
  const std::vector<Array> r = model.function(model.bind(inputs, {&params}));
  out.outer_loss = r[0].to_vector();
  out.cotangent = r[1], out.q = r[2], out.k = r[3], out.v = r[4];
  for (std::size_t i = 0; i < gates.size(); ++i) out.gates[gates[i]] = r[5 + i];
  if (position) out.position = r.back();
  for (const auto& [key, value] : params)
    if (key.starts_with(prefix)) out.params[key.substr(prefix.size())] = value;
}

PrecisionProbe precision_of(const std::vector<Array>& inputs, const StateDict& checkpoint,
                            const std::function<Tensor(const Params& params, const Tensors& in)>& losses) {
  std::vector<std::string> names;
  const auto gradients = [&](DType dtype) {
    const TracedModel model = trace_model(dtype, specs_of(inputs), [&](ParamTable& table, const Tensors& in) {
      return grad(mean(losses(Params(table), in)), table.tensors(), {.allow_zero = true});
    });
    names.clear();
    for (const ParamSpec& p : model.params) names.push_back(p.name);
    const StateDict params = cast_to(checkpoint, dtype);
    return model.function(model.bind(inputs, {&params}));
  };
  const std::vector<Array> low = gradients(DType::f32), high = gradients(DType::f64);
  return compare_precision(names, low, high);
}

void check_layer(std::int64_t layer, std::int64_t layers) {
  if (layer < 0 || layer >= layers)
    throw ConfigError(
        fmt::format("[inspect] there is no layer {}; the model has {}, counted from 0", layer, layers));
}

}  // namespace nestgrad::look
