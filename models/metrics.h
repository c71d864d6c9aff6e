// The file metrics.jsonl of a training run: a line for each step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nestgrad {

struct Metric {
  std::int64_t step;
  double loss, grad_norm, rate, tokens_per_second;
  // Largest resident size of each process so far, in 10^6 bytes, by rank. Empty where it was not asked for.
  std::vector<double> peak_mb = {};
};

std::string to_line(const Metric& metric);

// The inverse, of any number of lines. `what` names the text in errors: IoError for a line that is not such a
// row, and for steps that do not follow each other.
std::vector<Metric> parse_metrics(const std::string& text, const std::string& what);

}  // namespace nestgrad
