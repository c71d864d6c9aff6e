// Text from a language model, byte by byte, with carried inner state.
#pragma once

#include <functional>
#include <string>

#include "models/decoder.h"

namespace nestgrad {

// Reads `prompt`, then draws `bytes` bytes from softmax(logits / temperature); temperature 0 takes the
// likeliest. Equal seeds give equal text. Returns the new bytes; `on_byte`, if given, sees each as it comes.
std::string sample_text(const LanguageModelConfig& config, const StateDict& params, const std::string& prompt,
                        std::int64_t bytes, double temperature, std::uint64_t seed,
                        const std::function<void(char)>& on_byte = {});

}  // namespace nestgrad
