// A learning rate and a momentum found by gradient: the error after a hundred steps of training is differentiated by both,
// through all steps. Beside it the best pair of a grid.
#pragma once

#include "reproduce/experiment.h"

namespace nestgrad::reproduce {

inline constexpr int kTrainingSteps = 100;

struct FoundRate {
  double rate, momentum;
};
// Descends the logarithm of the error of fresh problems, `steps` times. history: that logarithm before each step.
FoundRate rate_by_gradient(int steps, std::uint64_t seed, std::vector<double>& history);
// The pair with the least error on as many problems as rate_by_gradient sees in so many steps as the grid has pairs.
FoundRate rate_by_grid(std::uint64_t seed);
std::size_t pairs_of_grid();
// On problems that neither of the two has seen: the logarithm of the mean error after the hundred steps.
double log_error(const FoundRate& found, std::uint64_t seed);

}  // namespace nestgrad::reproduce
