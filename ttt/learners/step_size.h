// Step sizes: gates dt by which a continuous decay becomes that of a token, a = exp(-A dt) (Gu and Dao 2023,
// algorithm 2; Dao and Gu 2024). Shared by Mamba's successors and by what took its gates over.
#pragma once

#include "ttt/learners/matrix_memory.h"

namespace nestgrad::ttt {

// dt = softplus of a linear map. Its bias starts where softplus gives 0.001 to 0.1, drawn by logarithm, one per head
// (per_feature: per head and feature), as published.
GateSpec step_size_gate(std::string name, bool per_feature = false);

// exp(-A dt) of the gate `name`. A = exp(A_log), one per head, is an outer parameter of which 1 to 16 is drawn
// uniformly, as published.
Hyper decay_of_step_size(const Params& params, const SystemSizes& sizes, std::string name);

}  // namespace nestgrad::ttt
