// A part of a model's parameters taken by name from those of another: a converted model inherits what it has in common
// with the one that was trained before.
//
//   StateDict start = initial_parameters(training.specs(), DType::f32, seed);
//   const PartialLoad load = load_by_name(start, read_safetensors("vit.safetensors").tensors, "vit.safetensors");
//   training.start_from(start);   // load.str(): "48 parameters loaded; 2 left: ..; 3 new: .."
#pragma once

#include "models/traced_model.h"

namespace nestgrad {

struct PartialLoad {
  std::vector<std::string> loaded;       // names that both have
  std::vector<std::string> left;         // of the source alone: the model has no place for them
  std::vector<std::string> fresh;        // of the model alone: they start as they were
  std::vector<std::string> passed_over;  // that both have, and `wanted` did not take: they start as they were
  std::vector<std::string> rounded = {};  // of those loaded: with more digits than the model's type has
  std::string str() const;                // one line
};

// A parameter called `name` of `what`, in the type in which a model has it: itself, or converted. ConfigError for one that is not of
// floating point numbers, and where a number becomes infinite.
Array in_type(const Array& value, DType type, std::string_view name, std::string_view what);

// Does a number of it change in that type? f64 may have more digits than f32.
bool loses_digits(const Array& value, DType type);

// Copies into `params` what `source` has under the same name and takes by `wanted` (all, if it is empty), in the model's
// type (in_type). ConfigError, and nothing changes: nothing matches or is wanted, or a parameter has another shape; it names them.
// what: names the source in messages.
PartialLoad load_by_name(StateDict& params, const StateDict& source, const std::string& what,
                         const std::function<bool(const std::string& name)>& wanted = {});

}  // namespace nestgrad
