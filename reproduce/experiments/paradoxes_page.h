// The page of the experiment `paradoxes`, and what its runs and its page call rows and numbers.
#pragma once

#include <fmt/format.h>

#include "reproduce/experiment.h"

namespace nestgrad::reproduce {

namespace paradox {

inline const std::string kLact = "LaCT", kLactAscent = "LaCT, ascent", kLactKey = "LaCT, Q := K";
inline const std::string kSoftmax = "softmax attention", kSoftmaxKey = "softmax attention, Q := K";
inline const std::string kLinear = "TTT-Linear", kLinearAscent = "TTT-Linear, ascent";
inline constexpr std::int64_t kLayers = 2;
inline constexpr int kSteps[] = {1, 2, 4, 8, 16};  // inner steps of a chunk, at test time

// Names of numbers.
inline std::string with_steps(const std::string& what, int n) {
  return fmt::format("{}, {} inner steps", what, n);
}
inline std::string shorter(const std::string& what, int n) { return with_steps(what, n) + " of 1/n"; }
inline std::string of_layer(const std::string& what, std::int64_t layer) {
  return fmt::format("{}, layer {}", what, layer + 1);
}
inline const std::string kAscentLater = "loss, ascent without retraining",
                         kKeyLater = "loss, Q := K without retraining";
inline const std::string kUntrained = "untrained ";

}  // namespace paradox

std::vector<ReportView> paradoxes_views(const Results& results);

}  // namespace nestgrad::reproduce
