// A reference (ttt/reference.h) as a function. Internal.
#pragma once

#include "ttt/explain.h"
#include "ttt/reference_formulas.h"

namespace nestgrad::ttt {

// Optional inputs: what the first token finds, and cotangents of what the last leaves, by names of the state.
inline constexpr std::string_view kStartPrefix = "start.", kFinalCotangentPrefix = "cotangent.final.";

struct ReferenceProgram {
  Function function;
  std::vector<ReferenceTensor> inputs, outputs;  // in the function's order
  std::vector<ReferenceTensor> state;            // fast weights and slots, by names of the state
  std::vector<bool> is_slot;                     // of the state
  std::vector<ParamSpec> params;                 // the last of the inputs
  std::vector<bool> read;                        // of the inputs: does any output mention it
  Explanation explanation;
  LearnerFormulas formulas;
  std::int64_t state_every = 0;  // tokens

  // Optional inputs that it is not given.
  std::vector<ReferenceTensor> not_given() const;
};

// given: shapes of the optional inputs that there will be; an unknown one is a ConfigError, a misshapen one a
// ShapeError.
ReferenceProgram trace_reference(const System& system, const ReferenceShape& shape,
                                 const ReferenceOptions& options, const std::map<std::string, Shape>& given);

}  // namespace nestgrad::ttt
