// What a shift of all keys does to attention: softmax does not see it, test-time training does, unless keys are normalised over
// the tokens (T^5, equation 8 and its section on key shifts).
#pragma once

#include "models/traced_model.h"
#include "models/vision/vision_transformer.h"
#include "reproduce/claims.h"

namespace nestgrad::reproduce {

// How much of the keys of all blocks is the same for all tokens: the squared length of their mean over tokens by the mean of
// their squared lengths, 0 to 1, over held-out images.
double key_shift(const vision::VisionConfig& model, const StateDict& params, const Task& task);

// What each token of the grid takes of the others where the token in the middle asks, in the first head of the first block, for
// the first held-out image: as many numbers as tokens.
std::vector<double> attention_of(const vision::VisionConfig& model, const StateDict& params,
                                 const Task& task);

// Adds what a shift of all keys in every block changes in f64, in models with random weights of the task's seed, how well the
// first and the second derivative by the shift foretell it, and what attention costs by the number of tokens.
void shift_keys(const Task& task, Measured& out);

// `row` is the one of shift_keys.
std::function<Exact(const Results&)> shifts_hold(std::string row);
// maps: rows with a curve "attention", as attention_of gives it. ttt: the one whose keys' shift is shown.
ReportView shifts_view(const Results& results, const std::string& row, const std::vector<std::string>& maps,
                       const std::string& ttt);

}  // namespace nestgrad::reproduce
