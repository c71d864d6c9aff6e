// What a training run is shown as: one page, and its pictures.
#pragma once

#include "look/report.h"
#include "models/metrics.h"
#include "models/trainer.h"

namespace nestgrad {

struct TrainingResults {
  Validation validation;
  double bigram = 0;             // loss of a bigram model of the same training text, in nats per byte
  double tokens_per_second = 0;  // of training
  double seconds = 0;            // of everything
  std::string prompt, sample;    // what the model was given to go on with, and wrote; empty: nothing
  std::string why_no_sample;     // where it was to write, and failed
};

// Validation loss by position in the context, and the loss of one layer's own task; smoothed over 17 bytes.
Chart position_chart(const TrainingResults& results);
Chart inner_chart(const Validation::Inner& layer);

// A complete HTML page; facts by name stand at its head.
std::string training_report(const std::string& subtitle,
                            const std::vector<std::pair<std::string, std::string>>& facts,
                            const std::vector<Metric>& metrics, const TrainingResults& results);

}  // namespace nestgrad
