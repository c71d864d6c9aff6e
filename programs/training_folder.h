// The folder of a training run: what may stand there before, and what may not be written over.
#pragma once

#include <string>

#include "models/config.h"

namespace nestgrad {

// IoError if it cannot be there.
void make_folder(const std::string& folder);

// Writes config.json, so that a folder in which nothing can be written is found before the training. ConfigError, and
// nothing is written, where a run stands there and is not gone on with, or what is of something else (a page of inspect, a
// model that others read, a config.json that no run wrote); IoError where there is nothing to go on with.
void prepare_folder(const std::string& folder, bool resume, const LanguageModelConfig& model);

}  // namespace nestgrad
