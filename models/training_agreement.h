// What the processes that share a training compare, so that none steps its part of the numbers in another way than the others, and the
// checkpoint, which rank 0 writes, says what all of them did. ProcessError, at all of them, names the ranks and what differs.
#pragma once

#include "models/training.h"

namespace nestgrad {

// Before the first step: setup, identity, and what the programs read and move.
struct TrainingShape {
  std::vector<std::vector<Spec>> batches;  // of each kind
  std::vector<std::string> unused;         // parameters that nothing moves
};
void check_same_setup(Transport& processes, const TrainingSetup& setup, const RunIdentity& identity,
                      const TrainingShape& shape);

// Names and numbers of the parameters that training begins with.
void check_same_start(Transport& processes, const std::vector<ParamSpec>& specs,
                      const std::vector<Array>& params);

}  // namespace nestgrad
