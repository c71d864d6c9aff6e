// The experiments, a file each beside this one; catalogue.def lists them.
#pragma once

#include "reproduce/experiment.h"

namespace nestgrad::reproduce {

#define NESTGRAD_EXPERIMENT(function) Experiment function();
#include "reproduce/experiments/catalogue.def"
#undef NESTGRAD_EXPERIMENT

}  // namespace nestgrad::reproduce
