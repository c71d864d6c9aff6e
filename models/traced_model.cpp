#include "models/traced_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/core/nearest_name.h"
#include "engine/io/file.h"

namespace nestgrad {

namespace {

using ShownSpecs = std::map<std::string, std::string>;  // of values by name, as messages show them

// 'a' [8], 'b' [2,3] and 4 more.
std::string listed_with(const ShownSpecs& specs, const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 6;
  std::string out;
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i)
    out += fmt::format("{}'{}' {}",
                       i == 0                  ? ""
                       : i + 1 == names.size() ? " and "
                                               : ", ",
                       printable(names[i]), specs.at(names[i]));
  if (names.size() > kMost) out += fmt::format(" and {} more", names.size() - kMost);
  return out;
}

// How values by name do not fit what is wanted, each part behind "; ". kind: of what is wanted.
struct Misfit {
  std::string missing, misshapen, surplus;

  Misfit(const ShownSpecs& wanted, const ShownSpecs& given, const char* kind) {
    std::vector<std::string> lacked, left;
    for (const auto& [name, spec] : wanted)
      if (const auto at = given.find(name); at == given.end()) lacked.push_back(name);
      else if (at->second != spec && misshapen.size() < 300)
        misshapen += fmt::format("; '{}' is {}, the model wants {}", name, at->second, spec);
    for (const auto& [name, spec] : given)
      if (!wanted.contains(name)) left.push_back(name);
    if (!lacked.empty()) missing = fmt::format("; it lacks the {} {}", kind, listed_with(wanted, lacked));
    if (left.empty()) return;
    surplus = fmt::format("; it holds {}, which the model has no place for", listed_with(given, left));
    for (const std::string& name : left)
      if (const std::string nearest = nearest_name(name, lacked); !nearest.empty()) {
        surplus += fmt::format("; is '{}' meant for '{}'?", printable(name), nearest);
        break;
      }
  }
  std::string str() const { return missing + surplus + misshapen; }
};

}  // namespace

TracedModel trace_model(DType dtype, const std::vector<Spec>& given, const ModelFn& fn) {
  require_function("model", "what makes the model", fn);
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
  if (std::ranges::find(sources, nullptr) != sources.end())
    throw ConfigError("[model] one of what the model is to be given is null");
  std::vector<Array> values = given;
  for (std::size_t i = given.size(); i < inputs.size(); ++i) {
    const Array* found = nullptr;
    for (const StateDict* source : sources)
      if (const auto at = source->find(inputs[i]); at != source->end()) found = &at->second;
    if (!found || found->spec() != function.input_spec(i)) break;
    values.push_back(*found);
  }
  if (values.size() == inputs.size()) return values;
  ShownSpecs wanted, held;
  for (std::size_t i = given.size(); i < inputs.size(); ++i)
    wanted.emplace(inputs[i], to_string(function.input_spec(i)));
  for (const StateDict* source : sources)
    for (const auto& [name, value] : *source) held.insert_or_assign(name, to_string(value.spec()));
  throw ConfigError(
      fmt::format("[model] what is given does not fit the model{}", Misfit(wanted, held, "value").str()));
}

void check_fits(const std::vector<ParamSpec>& params, const StateDict& dict, const std::string& what) {
  ShownSpecs wanted, held;
  for (const ParamSpec& p : params) wanted.emplace(p.name, to_string(p.shape));
  for (const auto& [name, value] : dict) held.emplace(name, to_string(value.shape()));
  if (wanted == held) return;
  throw ConfigError(
      fmt::format("[model] {} does not fit the model{}", what, Misfit(wanted, held, "parameter").str()));
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
