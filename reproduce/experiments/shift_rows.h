// The experiments on learning at test time under a shift: rows, claims and pages, for any task without labels.
#pragma once

#include "reproduce/experiments/shift_model.h"

namespace nestgrad::reproduce {

// What a page says of a problem.
struct ShiftTexts {
  std::string question;  // "Does painting an image's hidden patches for a few steps help to classify it?"
  std::string task;      // images, model, the task without labels, and what is done at test time
  std::string data;      // what the corrupted images are
};

// `made` with rows, runs, claims and views of that problem.
Experiment shift_experiment(Experiment made, const ShiftProblem& problem, const ShiftTexts& texts);

}  // namespace nestgrad::reproduce
