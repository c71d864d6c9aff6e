// What a reference (ttt/reference.h) says in formulas, read off traces of the system's own text. Internal.
#pragma once

#include "ttt/reference_views.h"

namespace nestgrad::ttt {

// A value as calls of ops on the inputs of its graph, with all constants: "sigmoid(add(raw forget, 4))". Changes
// of shape are left out; of what is too long to read, its beginning.
std::string formula(Tensor value);

struct LearnerFormulas {
  std::map<std::string, std::string> taken;  // outer parameters of which the learner takes a function: which
  std::map<std::string, std::string> start;  // by names of the state: what the first token finds
  std::string gradient, update;              // of each weight that learns, and of its slots
  std::string constants;                     // in f and in the loss
  std::int64_t answer_dim = 0;               // features of f(q)
};
LearnerFormulas learner_formulas(const System& system, const ReferenceSizes& sizes,
                                 const ReferenceOptions& options);

// Names of State::flat() as files have them: without blanks.
std::vector<std::string> state_names(const State& state);

}  // namespace nestgrad::ttt
