// Regression of sines from ten points (Finn, Abbeel and Levine 2017, section 5.1), as a problem of few-shot learning.
#pragma once

#include "reproduce/experiments/meta_learning.h"

namespace nestgrad::reproduce {

inline constexpr std::int64_t kPoints = 10;  // that a task is learnt from
inline constexpr double kInnerRate = 0.01;   // of a step on a task
inline constexpr int kMostSteps = 10;        // after which errors are measured

// amplitude [tasks, 1, 1] in [.1, 5), phase [tasks, 1, 1] in [0, pi), x [tasks, points, 1] in [-5, 5); what is to be found
// is amplitude * sin(x - phase). Batch b of a purpose depends on seed, purpose and b alone.
enum class Purpose : std::uint64_t { training, choosing, testing };
std::vector<Array> sine_tasks(std::int64_t tasks, std::int64_t points, Purpose purpose, std::uint64_t batch,
                              std::uint64_t seed);
std::vector<Spec> sine_specs(std::int64_t tasks, std::int64_t points);

// From batches of sine_tasks(.., 2 kPoints, ..): a task is learnt from the first half of its points, and judged by the second.
FewShotProblem sine_problem();
// One set of weights for all sines at once.
Training::ObjectiveFn pretraining_on_sines();

// Errors (mean squared) after 0, 1, .. kMostSteps steps on a task's points, means over many tasks of that purpose.
// rate: of the steps, unless `params` holds learned ones. Not a number where a step leads there.
std::vector<double> errors_by_step(const StateDict& params, double rate, Purpose purpose, std::uint64_t seed);

}  // namespace nestgrad::reproduce
