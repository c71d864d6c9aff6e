// Matrix memories: f(x) = x W from W = 0, the fast weights of linear attention and of its successors.
#pragma once

#include "ttt/system.h"

namespace nestgrad::ttt {

Model matrix_memory(const Params& params, const SystemSizes& sizes);

// What these systems, and others, do to their views:
void scale_queries(Views& views);  // q / sqrt(dim)
void unit_lengths(Views& views);   // silu(q) and silu(k), of length 1

// A gate in (0, 1): the sigmoid of a linear map whose bias starts here.
GateSpec sigmoid_gate(std::string name, double bias);

}  // namespace nestgrad::ttt
