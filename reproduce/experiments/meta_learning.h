// Ways of finding a start from which a few gradient steps fit a new task, for any problem: MAML and its relatives, each as
// the objective of a Training. A program learns many tasks side by side: each weight has an axis of tasks.
#pragma once

#include "models/training.h"

namespace nestgrad::reproduce {

using Weights =
    std::vector<Tensor>;  // matrices: [rows, columns] of the start, [tasks, rows, columns] of tasks

// What is to be learnt. Batches are what the problem's own generator makes.
struct FewShotProblem {
  std::function<Weights(ParamTable& table)> start;
  // The examples of a batch from which each task is learnt, and those by which it is judged: what `loss` reads.
  std::function<std::vector<Tensor>(const std::vector<Tensor>&batch)> learnt, judged;
  // Of each task, [tasks].
  std::function<Tensor(const Weights& weights, const std::vector<Tensor>& examples)> loss;
  double rate = 0.01;  // of a step on a task
};

// A step of every task along its own gradient: change(i, g) is what is taken from weight i.
Weights step(const FewShotProblem& problem, const Weights& weights, const std::vector<Tensor>& examples,
             const std::function<Tensor(std::size_t i, Tensor gradient)>& change);
// The start, for so many tasks.
Weights of_tasks(const Weights& start, std::int64_t tasks);
// A rate for each weight of the start: parameters rate0, rate1, ..
Weights rates_of(ParamTable& table, const Weights& start, double rate);

// Judged after `steps` steps, through which the gradient goes (Finn, Abbeel and Levine 2017); first_order: the steps'
// gradients count as constants.
Training::ObjectiveFn maml(FewShotProblem problem, int steps, bool first_order);
// The same, each weight with a rate of its own that is trained as well (Meta-SGD, Li et al. 2017).
Training::ObjectiveFn learned_rates(FewShotProblem problem, int steps);
// The gradient is from the start to where `steps` steps lead, on both halves in turn (Nichol et al. 2018).
Training::ObjectiveFn reptile(FewShotProblem problem, int steps);
// The inner loss has proximity / 2 |w - start|^2 beside it; at its minimum, which `steps` steps of steepest descent come near
// to, the meta-gradient is (I + H / proximity)^-1 times the gradient of the judged loss, by `solving` steps of conjugate
// gradients (Rajeswaran et al. 2019).
Training::ObjectiveFn implicit_maml(FewShotProblem problem, double proximity, int steps, int solving);

// x with A x = b after `steps` steps of conjugate gradients from 0, for every task (the first axis) by itself; A symmetric
// and positive definite. A task whose residual is 0 stays as it is.
Weights conjugate_gradients(const std::function<Weights(const Weights&)>& times_a, const Weights& b,
                            int steps);

}  // namespace nestgrad::reproduce
