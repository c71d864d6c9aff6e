#include "models/partial_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/core/index.h"
#include "engine/core/nearest_name.h"
#include "engine/io/file.h"

namespace nestgrad {

std::string PartialLoad::str() const {
  std::string out = fmt::format("{} parameters loaded", loaded.size());
  if (!left.empty()) out += fmt::format("; {} left: {}", left.size(), listed(left));
  if (!fresh.empty()) out += fmt::format("; {} new: {}", fresh.size(), listed(fresh));
  if (!passed_over.empty())
    out += fmt::format("; {} passed over: {}", passed_over.size(), listed(passed_over));
  if (!rounded.empty()) out += fmt::format("; {} rounded to f32: {}", rounded.size(), listed(rounded));
  return out;
}

Array in_type(const Array& value, DType type, std::string_view name, std::string_view what) {
  if (value.dtype() == type) return value;
  if (!is_float(value.dtype()))
    throw ConfigError(fmt::format("[load] {}: '{}' is {}; parameters are floating point numbers",
                                  printable(what), printable(name), to_string(value.spec())));
  Array out = value.cast(type);
  if (type == DType::f32 && value.dtype() == DType::f64)
    for (std::size_t i = 0; i < uz(value.size()); ++i)
      if (std::isfinite(value.as<double>()[i]) && !std::isfinite(out.as<float>()[i]))
        throw ConfigError(
            fmt::format("[load] {}: '{}' holds {}, which f32 does not hold; give weights that it does",
                        printable(what), printable(name), value.as<double>()[i]));
  return out;
}

bool loses_digits(const Array& value, DType type) {
  if (type != DType::f32 || value.dtype() != DType::f64) return false;
  return std::ranges::any_of(value.as<double>(), [](double x) {
    return std::isfinite(x) && static_cast<double>(static_cast<float>(x)) != x;
  });
}

PartialLoad load_by_name(StateDict& params, const StateDict& source, const std::string& what,
                         const std::function<bool(const std::string& name)>& wanted) {
  PartialLoad out;
  StateDict found;
  std::string misshapen;
  for (const auto& [name, value] : params) {
    const auto at = source.find(name);
    if (at == source.end()) {
      out.fresh.push_back(name);
    } else if (wanted && !wanted(name)) {
      out.passed_over.push_back(name);
    } else if (at->second.shape() != value.shape()) {
      if (misshapen.size() < 300)
        misshapen += fmt::format("{}'{}' is {}, the model wants {}", misshapen.empty() ? "" : "; ",
                                 printable(name), to_string(at->second.shape()), to_string(value.shape()));
    } else {
      out.loaded.push_back(name);
      if (loses_digits(at->second, value.dtype())) out.rounded.push_back(name);
      found.emplace(name, in_type(at->second, value.dtype(), name, what).unshared());
    }
  }
  for (const auto& [name, value] : source)
    if (!params.contains(name)) out.left.push_back(name);
  if (!misshapen.empty())
    throw ConfigError(
        fmt::format("[load] {}: {}; leave these out, or choose the sizes of the model that wrote them",
                    printable(what), misshapen));
  if (found.empty() && !out.passed_over.empty())
    throw ConfigError(
        fmt::format("[load] `wanted` takes none of the {} parameters that {} and the model both have: {}",
                    out.passed_over.size(), printable(what), listed(out.passed_over)));
  if (found.empty()) {
    std::string hint;
    for (const std::string& name : out.left)
      if (const std::string nearest = nearest_name(name, out.fresh); !nearest.empty()) {
        hint = fmt::format("; is '{}' meant for '{}'?", printable(name), nearest);
        break;
      }
    throw ConfigError(
        fmt::format("[load] {} has no parameter of the model by name: it holds {}, the model wants {}{}",
                    printable(what), out.left.empty() ? "nothing" : listed(out.left),
                    out.fresh.empty() ? "nothing" : listed(out.fresh), hint));
  }
  for (auto& [name, value] : found) params.insert_or_assign(name, std::move(value));
  return out;
}

}  // namespace nestgrad
