// Text from a language model, token by token, with carried inner state.
#pragma once

#include <functional>
#include <string>

#include "models/decoder.h"
#include "models/tokenizer.h"

namespace nestgrad {

// Reads `prompt`, then draws tokens from softmax(logits / temperature), until they are `bytes` bytes or the text
// ends; temperature 0 takes the likeliest. Equal seeds give equal text. Returns the new bytes (the last token
// may add more than were asked for); `on_byte`, if given, sees each as it comes. ConfigError for a tokenizer of
// more tokens than the model has.
std::string sample_text(const LanguageModelConfig& config, const StateDict& params, const std::string& prompt,
                        std::int64_t bytes, double temperature, std::uint64_t seed,
                        const std::function<void(char)>& on_byte = {},
                        const Tokenizer& tokenizer = byte_tokenizer());
// The same of any model that a Decoder takes. One with a cache of keys and values needs room for the tokens of the
// prompt and as many as `bytes`.
std::string sample_text(const LogitsFn& model, const StateDict& params, const std::string& prompt,
                        std::int64_t bytes, double temperature, std::uint64_t seed,
                        const std::function<void(char)>& on_byte = {},
                        const Tokenizer& tokenizer = byte_tokenizer());

}  // namespace nestgrad
