// The folder of a training run: what may stand there before, and what may not be written over.
#pragma once

#include <cstdint>
#include <string>

#include "models/config.h"

namespace nestgrad {

// Writes config.json, so that a folder in which nothing can be written is found before the training, and tries whether the other
// files can be. ConfigError, and nothing is written, where a run stands there and is not gone on with, or files that a run would replace
// (programs/out_folder.h). A run that begins may replace what one leaves that is killed before its first checkpoint: config.json, and
// the lines of metrics.jsonl up to first_save, the step of that checkpoint. IoError where there is nothing to go on with.
void prepare_folder(const std::string& folder, bool resume, const LanguageModelConfig& model,
                    std::int64_t first_save);

}  // namespace nestgrad
