// A model traced into a function, with its inputs known by name: the ones given, then parameters and states
// in the order in which the model asked for them.
#pragma once

#include <functional>

#include "engine/run/function.h"
#include "ttt/params.h"

namespace nestgrad {

using StateDict = std::map<std::string, Array>;

struct TracedModel {
  Function function;
  std::vector<ParamSpec> params;
  std::vector<std::string> inputs;  // names of all inputs of the function

  // The function's inputs after the first `given`, looked up by name; sources may hold more. ConfigError if one
  // is missing or misshapen: it names all of those, and what the sources hold that is not asked for.
  std::vector<Array> bind(const std::vector<Array>& given,
                          const std::vector<const StateDict*>& sources) const;
};

using ModelFn = std::function<std::vector<Tensor>(ParamTable& table, const std::vector<Tensor>& given)>;
TracedModel trace_model(DType dtype, const std::vector<Spec>& given, const ModelFn& fn);

// Throws ConfigError unless `dict` holds exactly these parameters in these shapes; says what is missing, left
// over, or of another shape. `what` names the source.
void check_fits(const std::vector<ParamSpec>& params, const StateDict& dict, const std::string& what);

// How many numbers they are.
std::int64_t parameter_count(const StateDict& params);

StateDict initial_parameters(const std::vector<ParamSpec>& params, DType dtype, std::uint64_t seed,
                             const Device& device = {});

}  // namespace nestgrad
