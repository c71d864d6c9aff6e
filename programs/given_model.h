// Models as programs are given them: by the path of a folder or of a file of weights.
#pragma once

#include "models/checkpoint.h"

namespace nestgrad {

// Reads a language model and says on standard error what its user should know: what its files leave open, which weights
// were rounded to f32. Errors name the path: those of read_checkpoint, ValueError for a weight that is not finite, ConfigError
// for weights that are not those of the configuration.
// speaks: false for a process of several that says nothing.
Checkpoint given_model(const std::string& path, bool speaks = true);

// Says that these were rounded; nothing of none.
void say_rounded(const std::string& path, const std::vector<std::string>& parameters);

}  // namespace nestgrad
