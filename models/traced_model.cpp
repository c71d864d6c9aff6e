#include "models/traced_model.h"

#include <fmt/format.h>

#include "engine/io/file.h"

namespace nestgrad {

TracedModel trace_model(DType dtype, const std::vector<Spec>& given, const ModelFn& fn) {
  TracedModel out;
  out.function = trace(
      [&](const std::vector<Tensor>& in) {
        ParamTable table(*context().emit.graph, dtype);
        std::vector<Tensor> results = fn(table, in);
        out.params = table.specs();
        return results;
      },
      given);
  for (NodeId id : out.function.inputs()) out.inputs.push_back(input_name(out.function.graph().node(id)));
  return out;
}

std::vector<Array> TracedModel::bind(const std::vector<Array>& given,
                                     const std::vector<const StateDict*>& sources) const {
  std::vector<Array> values = given;
  for (std::size_t i = given.size(); i < inputs.size(); ++i) {
    const Array* found = nullptr;
    for (const StateDict* source : sources)
      if (const auto at = source->find(inputs[i]); at != source->end()) found = &at->second;
    if (!found)
      throw ConfigError(
          fmt::format("[model] there is no value for '{}' {}", inputs[i], to_string(function.input_spec(i))));
    if (found->spec() != function.input_spec(i))
      throw ConfigError(fmt::format("[model] '{}' is {}, the model wants {}", inputs[i],
                                    to_string(found->spec()), to_string(function.input_spec(i))));
    values.push_back(*found);
  }
  return values;
}

void check_fits(const std::vector<ParamSpec>& params, const StateDict& dict, const std::string& what) {
  std::map<std::string, Shape> wanted;
  for (const ParamSpec& p : params) wanted.emplace(p.name, p.shape);
  std::vector<std::string> missing, surplus;
  std::string misshapen;
  for (const auto& [name, shape] : wanted) {
    const auto found = dict.find(name);
    if (found == dict.end()) missing.push_back(name);
    else if (found->second.shape() != shape && misshapen.size() < 300)
      misshapen += fmt::format("; '{}' is {}, this configuration wants {}", name,
                               to_string(found->second.shape()), to_string(shape));
  }
  for (const auto& [name, value] : dict)
    if (!wanted.contains(name)) surplus.push_back(name);
  if (missing.empty() && surplus.empty() && misshapen.empty()) return;
  throw ConfigError(fmt::format(
      "[model] {} does not fit this configuration{}{}{}", what,
      missing.empty() ? "" : fmt::format("; it lacks the parameter {}", listed(missing)),
      surplus.empty() ? "" : fmt::format("; it holds {}, which the model has no place for", listed(surplus)),
      misshapen));
}

std::int64_t parameter_count(const StateDict& params) {
  std::int64_t n = 0;
  for (const auto& [name, value] : params) n += value.size();
  return n;
}

StateDict initial_parameters(const std::vector<ParamSpec>& params, DType dtype, std::uint64_t seed,
                             const Device& device) {
  StateDict out;
  for (const ParamSpec& p : params) out.emplace(p.name, initial_value(p, dtype, seed, device));
  return out;
}

}  // namespace nestgrad
