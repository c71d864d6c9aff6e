// Whether all processes of a group run the same collectives.
#pragma once

#include "engine/plan/program.h"
#include "engine/run/spread.h"

namespace nestgrad {

// Before a plan runs for the first time: ProcessError, at all processes of a group that it goes over, where their programs
// exchange bytes otherwise: by other ops, in another order, or for values of another shape. Each would take for its own what was
// sent for something else. Nothing is sent where a plan has no collectives.
void check_same_collectives(const Program& program);

// ProcessError if an input has different numbers within a group in which it should have the same. PartlyOwn::input is its place
// among `inputs`; `names` are the inputs' names.
void check_same_inputs(const std::vector<PartlyOwn>& partly_own, std::span<const Array> inputs,
                       const std::vector<std::string>& names);

}  // namespace nestgrad
