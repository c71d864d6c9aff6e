// Regression of sines from ten points (Finn, Abbeel and Levine 2017, section 5.1), and the ways of finding a start from
// which a few gradient steps fit a new one. A program learns many tasks side by side: each weight has an axis of tasks.
#pragma once

#include "reproduce/outer_training.h"

namespace nestgrad::reproduce {

inline constexpr std::int64_t kPoints = 10;  // that a task is learnt from
inline constexpr double kInnerRate = 0.01;   // of a step on a task
inline constexpr int kMostSteps = 10;        // after which errors are measured

using Weights = std::vector<Tensor>;

// amplitude [tasks, 1, 1] in [.1, 5), phase [tasks, 1, 1] in [0, pi), x [tasks, points, 1] in [-5, 5); what is to be found
// is amplitude * sin(x - phase). Batch b of a purpose depends on seed, purpose and b alone.
enum class Purpose : std::uint64_t { training, choosing, testing };
std::vector<Array> sine_tasks(std::int64_t tasks, std::int64_t points, Purpose purpose, std::uint64_t batch,
                              std::uint64_t seed);
std::vector<Spec> sine_specs(std::int64_t tasks, std::int64_t points);

// One step of the outer training, from batches of sine_tasks(.., 2 kPoints, ..): a task is learnt from the first half of
// its points, and judged by the second.
OuterTraining::ObjectiveFn maml(bool first_order);
// The same, each weight with a rate of its own that is trained as well (Meta-SGD, Li et al. 2017).
OuterTraining::ObjectiveFn learned_rates();
// The gradient is from the start to where eight steps lead, on both halves in turn (Nichol et al. 2018).
OuterTraining::ObjectiveFn reptile();
// The inner loss has 5 |w - start|^2 beside it; at its minimum, which ten steps of steepest descent come near to, the
// meta-gradient is (I + H / 10)^-1 times the gradient of the judged loss, by conjugate gradients (Rajeswaran et al. 2019).
OuterTraining::ObjectiveFn implicit_maml();
// One set of weights for all tasks at once.
OuterTraining::ObjectiveFn pretraining();

// x with A x = b after `steps` steps of conjugate gradients from 0, for every task (the first axis) by itself; A symmetric
// and positive definite. A task whose residual is 0 stays as it is.
Weights conjugate_gradients(const std::function<Weights(const Weights&)>& times_a, const Weights& b,
                            int steps);

// Errors (mean squared) after 0, 1, .. kMostSteps steps on a task's points, means over many tasks of that purpose.
// rate: of the steps, unless `params` holds learned ones. Not a number where a step leads there.
std::vector<double> errors_by_step(const StateDict& params, double rate, Purpose purpose, std::uint64_t seed);

}  // namespace nestgrad::reproduce
