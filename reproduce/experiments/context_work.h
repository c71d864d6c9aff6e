// The models of the experiment `context`, and the work that a token costs each of them: the same, because their MLPs are
// as wide as what the sequence layer leaves of a budget.
#pragma once

#include "models/config.h"

namespace nestgrad::reproduce {

struct ContextModel {
  std::string name, layer;  // layer: its ttt_layer_type
  bool has_state = false;   // in the backbone with a gate and convolutions, as in the paper
  std::string paper;        // what the paper's figures say of it
};
const std::vector<ContextModel>& context_models();
const ContextModel& context_model(const std::string& name);  // ConfigError for an unknown one

// Operations of a token, read with others in windows of `length`, if its MLPs are `hidden` wide.
double work_of(const ContextModel& model, std::int64_t length, std::int64_t hidden);
// The budget: TTT-MLP's with MLPs of kHidden.
double work_budget();

// Its configuration, with the MLP that comes nearest to the budget, at least the narrowest.
LanguageModelConfig config_of(const ContextModel& model, std::int64_t length);

}  // namespace nestgrad::reproduce
