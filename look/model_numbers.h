// What an inspection of a whole model takes from it: the numbers that one of its inner loops is given, what the model's loss
// wants of the loop, and the precision of its gradients.
#pragma once

#include "look/numbers.h"
#include "models/traced_model.h"

namespace nestgrad::look {

// An inner loop in the program of its model.
struct LoopInModel {
  Tensor losses, answers;
  ttt::Views views;
};

// Fills in numbers: what the loop that `see` finds is given, and what the mean of its losses wants of it. prefix: of the
// layer's parameters. ConfigError for a checkpoint of another model.
void take_numbers(InspectedLoop& out, const std::vector<Array>& inputs, const StateDict& checkpoint,
                  const std::string& prefix,
                  const std::function<LoopInModel(const Params& params, const std::vector<Tensor>& in)>& see);

// Of a mean of losses by every parameter, in f32 beside f64.
PrecisionProbe precision_of(
    const std::vector<Array>& inputs, const StateDict& checkpoint,
    const std::function<Tensor(const Params& params, const std::vector<Tensor>& in)>& losses);

std::vector<Spec> specs_of(const std::vector<Array>& arrays);
void check_layer(std::int64_t layer, std::int64_t layers);  // ConfigError for one that there is not

}  // namespace nestgrad::look
