// How text becomes tokens, and tokens text.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nestgrad {

// Immutable: any number of threads may use one.
//
//   const auto tokenizer = read_tokenizer("ttt-linear-125m", config.vocab_size);
//   std::vector<std::int32_t> tokens = tokenizer->encode("Once upon a time");
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Tokens are below it.
  virtual std::int64_t vocab_size() const = 0;
  // The tokens of a whole text, after the one that begins every text, if there is such a token.
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  // What a token adds to the text that is being written: none, one or more bytes, which may be a part of a
  // character. ValueError for a token that there is not.
  virtual std::string bytes(std::int32_t token) const = 0;
  // After it a text has ended.
  virtual std::optional<std::int32_t> end_of_text() const { return std::nullopt; }
};

// Each byte is a token, 256 in all: what models that are trained here read.
const Tokenizer& byte_tokenizer();

// The tokenizer of a model: tokenizer.model in its folder or beside its file of weights, that of sentencepiece
// (Llama 2's and the like), which begins texts with its BOS if it has one. Without such a file a model of 256 tokens
// reads bytes. given: another one in its place, a file of any name or a folder with tokenizer.model, and nothing but
// that. (So is a `model` whose name ends in .model.) ConfigError where there is none, one is given to a model of bytes,
// it has more tokens than the model (vocab_size), or the library was built without sentencepiece; IoError for a given one
// that is not there, and a file that is damaged.
std::shared_ptr<const Tokenizer> read_tokenizer(const std::string& model, std::int64_t vocab_size,
                                                const std::string& given = "");

}  // namespace nestgrad
